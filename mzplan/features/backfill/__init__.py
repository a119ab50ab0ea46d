"""`mzplan backfill`: a range of a source's upstream once more. What a record says of backfills is the core's
(model.state), and so is doing them (spark.tasks.backfills): the room plans them.
"""
