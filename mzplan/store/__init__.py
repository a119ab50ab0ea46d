"""The store: State, Status, leases and proposals of a project, with formats and backends.

The planning side and the running side share the store, and meet nowhere else. docs/internals/protocol.md
describes the contract. The package may import model, schema, secrets and host.
"""
