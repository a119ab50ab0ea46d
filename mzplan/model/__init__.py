"""The frozen types that all other packages share.

This package does no I/O and imports nothing else of mzplan. So the planning side and the running side can
share it without knowing each other.
"""
