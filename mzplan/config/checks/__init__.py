"""Everything that can be wrong with declared resources: schemas, references, secrets, columns, expressions.

Works on plain data and adds findings; mzplan.config.locations looks up later where they stand in a file.
"""
