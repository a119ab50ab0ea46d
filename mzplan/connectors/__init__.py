"""Connectors: one package per type of server or target, and the packages that they share.

Each type's package exposes one `CONNECTOR` (api.connector): its source, its sink and its capabilities.
`catalogue` finds it by the type's name, among mzplan's own and those of other packages; no other module knows
types by name. `checks`, `releases` and `adoption` work on any type. Types build on `adapter` (durable
endpoints as connectors), `formats` (the contents of records), `network` (the way to a server), `api`
(protocols and capabilities) and `frames` (expressions over Spark's DataFrames).

A connector's `probe` (connect, authenticate, find, identify) needs no pyspark, so the command line can run it
too (`--live`). Only functions that build streams import pyspark, inside their bodies. May import endpoints,
warehouse, schema, secrets, host and model; never config, plan, operations, render or cli.
"""
