"""Expressions over Spark's DataFrames that connectors and mzplan.spark share: types, changes, merges, hashes.

Takes frames and returns frames: opens no session, starts no query, knows no server. pyspark is imported only
inside functions.
"""
