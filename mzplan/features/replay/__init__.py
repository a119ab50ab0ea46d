"""`mzplan replay`: steps of a sink, or dead letters of a source, once more. What a task is
belongs to the core (model.tasks), and doing these kinds to spark.tasks: the room plans them.
"""
