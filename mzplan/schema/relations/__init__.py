"""Analyses the SQL of relational views without Spark.

The query of a relational view joins, aggregates, unites, reads snapshots, or makes several rows from one.
Other views are row views (mzplan.schema.sql.view_query): each row comes from one row of one collection.
"""
