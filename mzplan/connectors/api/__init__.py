"""What a connector is: the protocols that it fills, the lookup by type, and the live checks of both sides.

May not know a server, a format or a way through the network.
"""
