"""The connector interface: its protocols, its optional capabilities, and code that all connectors share.

Modules here may not know a type, a server, a format or a network path.
"""
