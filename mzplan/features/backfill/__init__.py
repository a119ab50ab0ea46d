"""`mzplan backfill`: plans to read a range of a source's upstream again.

The core defines tasks (model.tasks), and spark.tasks.backfills runs this kind.
"""
