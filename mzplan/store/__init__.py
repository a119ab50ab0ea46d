"""The store: State, Status, leases and proposals of a project, their formats, and backends that keep them.

Shared by the planning and the running side: they meet only here. docs/internals/protocol.md is its contract.
May import model, schema, secrets and host.
"""
