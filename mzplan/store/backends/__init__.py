"""Backends of the store: named blobs with compare-and-swap, and one lock.

A backend doesn't know State: it may not import the rest of mzplan.store.
"""
