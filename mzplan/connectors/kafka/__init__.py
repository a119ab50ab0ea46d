"""Kafka: a source, and a sink that is exactly once by transactions.

`source` and `sink` are the connectors; `probe` asks a cluster, `output` is the sink as an OutputEndpoint.
May not import another type of connector.
"""
