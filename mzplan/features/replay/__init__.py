"""`mzplan replay`: writes a sink's steps, or reads a source's dead letters, once more. Plans the task.

The core defines tasks (model.tasks), and spark.tasks runs these kinds.
"""
