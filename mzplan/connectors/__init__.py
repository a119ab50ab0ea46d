"""Connectors: one package per type of server or target, on what they share.

`api` has the protocols and the lookup, `frames` what is said over Spark's DataFrames, `network` the way to a
server, `formats` what records hold, `adapter` makes connectors of durable endpoints; each other package is
one type. A connector's `probe` (reach, authenticate, find, identify) needs no pyspark, so that the command
line can run it too (`--live`); pyspark is imported only inside the functions that build streams. May import
endpoints, warehouse, schema, secrets, host and model; never config, plan, operations, render or cli.
"""
