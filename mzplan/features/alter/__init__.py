"""`mzplan alter`: statements edit the files, and exactly these edits are planned and committed.

`sql` parses statements, `requests` finds the changes that they request, and `transactions` makes the edits. A
journal (operations.alter_journal) makes edit and commit one unit: after a crash, the next command finishes or
undoes it.
"""
