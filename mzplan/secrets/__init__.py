"""Secrets: references to them (`${env:NAME}`, `${file:PATH}`), resolved late, and digests that show a change.

Never stored, never shown. May import model only.
"""
