"""What the JSON Schemas declare of each kind and type, and what follows from them alone.

`loading` reads the schemas (and those of `plugins`), `kinds` says what they declare, `statement_options` what
ALTER can set by them. `columns` and `source_columns` parse Spark DDL without Spark, `description` is a query
with everything it depends on written into it, and its digest. Shared by the planning and the running side.
May import model and secrets; does no I/O except reading the schema files.
"""
