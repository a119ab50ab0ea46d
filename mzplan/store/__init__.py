"""The store: State, Status, leases and proposals of a project, with formats and backends.

The planning side and the running side share it and meet only here. docs/internals/protocol.md is its
contract. It may import model, schema, secrets and host.
"""
