"""`mzplan replay`: steps of a sink once more into its target. What a record says of replays is the core's
(model.state), and so is doing them (spark.errands.replays): the room plans them.
"""
