"""Access to the machine: files that people name, other processes, networks, failpoints.

Both sides use this package. It imports only model.
"""
