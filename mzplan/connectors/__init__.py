"""Connectors: one package per type of server or target, on what they share.

Each package of a type exposes one `CONNECTOR` (api.connector): its sides, and what can be asked of the type
itself. `catalogue` finds it by the type's name, mzplan's own as those of other packages, and alone knows
them by name; `checks`, `releases` and `adoption` work on any of them. Below the types:
`adapter` makes connectors of durable endpoints, `formats` is what records hold, `network` the way to a
server, `api` the protocols and capabilities, `frames` expressions over Spark's DataFrames.

A connector's `probe` (reach, authenticate, find, identify) needs no pyspark, so that the command line can run
it too (`--live`); pyspark is imported only inside the functions that build streams. May import endpoints,
warehouse, schema, secrets, host and model; never config, plan, operations, render or cli.
"""
