"""YAML with positions: reads a text into plain data, and edits the text.

This package knows nothing about resources, and must not import mzplan.config.checks.
"""
