"""Runs queries over given rows in a temporary folder, as a runner would: for tests and previews.

Nothing here contacts a server, resolves a secret, or reads the store.
"""
