"""`mzplan replay`: steps of a sink, or dead letters of a source, once more. What a record says of replays is
the core's (model.state), and so is doing them (spark.tasks): the room plans them.
"""
