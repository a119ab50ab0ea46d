"""`mzplan backfill`: reads a range of a source's upstream once more. This feature plans the task.

The core defines tasks (model.tasks), and spark.tasks.backfills runs this kind.
"""
