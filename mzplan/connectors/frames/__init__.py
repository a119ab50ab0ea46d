"""Expressions over Spark's DataFrames that connectors and mzplan.spark share: types, changes, merges, hashes.

Functions take and return DataFrames. They open no session, start no query and know no server. pyspark is
imported only inside functions.
"""
