"""Secrets: resolves references (`${env:NAME}`, `${file:PATH}`) late, and detects changed values by digests.

Secrets are never stored or shown. This package imports only model.
"""
