"""ALTER and VALIDATE statements: their grammar, and what they mean for the body of a resource.

grammar.lark is the grammar; `parser` turns a text into a frozen statement (lark is imported only there);
`meaning` turns its actions into edits of a body; names of options come from the schemas (`x-sql`).

May not: read files, touch the store, or know a type of connection by its name. Mistakes in a statement become
Diagnostics that point at its column; a secret written out in it is never shown.
"""
