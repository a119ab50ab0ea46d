"""One module per type of connection, source and sink.

A connector's `probe` (reach, authenticate, find, identify) needs no pyspark, so that the command line can
run it too (`--live`); pyspark is imported only inside the functions that build streams. May import model,
kinds, inline, columns, secrets and endpoints; never config, plan, operations or cli.
"""
