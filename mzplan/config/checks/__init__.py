"""Checks declared resources: schemas, references, secrets, columns, expressions.

The checks work on plain data and add findings. mzplan.config.locations looks up their places in a file
later.
"""
