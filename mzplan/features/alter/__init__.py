"""`mzplan alter`: statements that edit the files, and the plan and commit of exactly these edits.

`sql` is their grammar; `requests` what they ask of a project, `transactions` their edits as one. The journal
that makes edit and commit one is the core's (operations.alter_journal): the next command finishes or forgets
it, whichever that is.
"""
