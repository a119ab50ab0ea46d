"""`mzplan backfill`: requests a reread of a range of a source's upstream.

The core defines tasks (model.tasks), and spark.tasks.backfills runs backfills.
"""
