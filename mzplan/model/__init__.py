"""The frozen types that every other package speaks in.

A leaf: it does no I/O and imports nothing else of mzplan, so that the planning side and the
running side can share it without knowing each other.
"""
