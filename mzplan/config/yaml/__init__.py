"""YAML with positions: from a text to plain data, and edits back into the text. Only `events` imports yaml.

It knows nothing about resources, and may not import mzplan.config.checks.
"""
