"""`mzplan alter`: statements edit the files, and exactly these edits are planned and committed.

`sql` has the grammar, `requests` the changes that a statement requests, and `transactions` their edits. The
core's journal (operations.alter_journal) makes edit and commit one unit: after a crash, the next command
finishes or undoes it.
"""
