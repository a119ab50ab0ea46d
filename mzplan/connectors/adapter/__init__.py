"""Durable endpoints as Spark sources and sinks: plug-ins, local inputs and PostgreSQL."""
