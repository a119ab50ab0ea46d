"""Relational views: their SQL, read without Spark.

A row view computes each row from one row of one collection (mzplan.schema.view_query). The query of a
relational view joins, aggregates, unites, reads snapshots or makes several rows from one.
"""
