"""Migrates a source's rows to a new generation (`replace: from-collection`)."""
