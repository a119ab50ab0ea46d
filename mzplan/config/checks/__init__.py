"""Checks declared resources: schemas, references, secrets, columns, expressions.

The checks work on plain data and add findings. Later, mzplan.config.locations finds their places in the
files.
"""
