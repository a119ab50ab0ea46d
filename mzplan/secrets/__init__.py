"""Secrets: late resolution of references (`${env:NAME}`, `${file:PATH}`), and digests that reveal a change.

Secrets are never stored or shown. This package may import only model.
"""
