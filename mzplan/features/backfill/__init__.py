"""`mzplan backfill`: a range of a source's upstream once more. What a task is belongs to
the core (model.tasks), and doing this kind to spark.tasks.backfills: the room plans them.
"""
