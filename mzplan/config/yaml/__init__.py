"""YAML with positions: from a text to plain data, and edits back into the text. Only `events` imports yaml.

Knows nothing of resources: may not import mzplan.config.checks.
"""
