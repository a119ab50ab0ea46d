"""The files of the warehouse: checkpoints, collections, and their records of steps.

This package reads and writes Spark's checkpoint log, Delta's log and the index of steps. It also replays
steps, reads snapshots and computes content hashes. The storage is a folder on this machine or in an object
store. The runner writes, commands read. Nothing here imports pyspark or knows a server.
"""
