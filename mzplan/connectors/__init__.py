"""Connectors: one package for each type of server or target, and the packages that they share.

Each type's package exposes a `CONNECTOR` (api.connector): its source, its sink and its capabilities.
`catalogue` finds it by the type's name, among mzplan's own connectors and plug-ins. No other module knows
types by name. `checks`, `releases` and `adoption` work with any type. The shared packages are:

- `adapter`: makes sources and sinks from durable endpoints.
- `formats`: parses and writes the contents of records.
- `network`: gives access to servers and folders.
- `api`: the protocols and optional capabilities of a connector.
- `frames`: expressions over Spark's DataFrames.

A connector's `probe` connects, authenticates, and finds and identifies the upstream or target. It needs no
pyspark, so the command line can also run it (`--live`). Only functions that build streams import pyspark,
inside their bodies. May import endpoints, warehouse, schema, secrets, host and model; never config, plan,
operations, render or cli.
"""
