"""The way to a server: SSH tunnels, AWS sign-in, and the HTTP API of a schema registry.

Says nothing of what is read or written there; may not import formats or a type of connector.
"""
