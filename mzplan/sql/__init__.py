"""ALTER and VALIDATE statements: their grammar, and what they mean for the body of a resource.

grammar.lark is the whole grammar; `parse` makes a frozen statement of a text (lark is imported only there);
`meaning` turns its actions into edits of a body, with option names from the schemas (`x-sql`) alone.

May not: read files, touch the store, or know a type of connection by its name. What a person can write wrong
ends as Diagnostics that point at the column of the statement; a secret written out in it is never shown.
"""
