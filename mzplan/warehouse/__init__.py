"""Bytes on storage: checkpoints and collections below the warehouse, and what their files say of each step.

Spark's checkpoint log, Delta's log, the index of steps, replays, snapshots and content hashes, on this
machine or in an object store. Shared by both sides: the runner writes, commands read. Nothing here imports
pyspark or knows a server. May import model and schema.
"""
