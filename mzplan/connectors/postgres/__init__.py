"""PostgreSQL: `source` follows tables by logical replication, `sink` writes rows and step in one transaction.

Here is what both use: the client, the catalogue's tables, types, and which database it is. May not import
another type of connector; source and sink do not import each other.
"""
