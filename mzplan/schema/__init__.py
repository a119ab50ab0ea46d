"""The JSON Schemas of resources, and everything that follows from a resource's schema, columns or SQL alone.

- `loading` and `plugins` read the schemas; `kinds` and `statement_options` give access to their annotations
- `columns`, `source_columns`, `sql_types` and `relations` find columns and types without Spark
- `description` writes everything that a query depends on into the query, and computes its digest

Planning and running share this package. It does no I/O except reading the schema files.
"""
