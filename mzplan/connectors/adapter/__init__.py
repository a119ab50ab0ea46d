"""Durable endpoints as sources and sinks of Spark: those of third parties, local and PostgreSQL."""
