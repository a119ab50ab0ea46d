"""What a connector is: the protocols that it fills, the capabilities that it may have, and what all share.

May not know a type, a server, a format or a way through the network.
"""
