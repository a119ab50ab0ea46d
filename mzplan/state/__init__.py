"""State and Status: their formats, and the stores that keep them.

Shared by the planning and the running side: they meet only here. docs/protocol.md is its contract.
"""
