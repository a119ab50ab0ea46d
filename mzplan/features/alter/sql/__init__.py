"""ALTER and VALIDATE statements: their grammar, and their edits of a resource's body.

grammar.lark is the grammar. `parser` turns a text into frozen statements and is the only module that imports
lark. `meaning` turns their actions into edits of a body. The names of options come from the schemas
(`x-sql`).

This package must not read files, touch the store, or know a connection type by name. Mistakes in a statement
become Diagnostics that point at their column. A secret written out in a statement is never shown.
"""
