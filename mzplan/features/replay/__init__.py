"""`mzplan replay`: plans to write a sink's steps, or read a source's dead letters, again.

The core defines tasks (model.tasks), and spark.tasks runs these kinds.
"""
