"""Bytes on storage: checkpoints and collections below the warehouse, and their records of steps.

It covers Spark's checkpoint log, Delta's log, the index of steps, replays, snapshots and content hashes, on
this machine or in an object store. Both sides share it: the runner writes, commands read. Nothing here
imports pyspark or knows a server. It may import model and schema.
"""
