"""Makes Spark sources and sinks from durable endpoints: those of plug-ins, local sources and PostgreSQL."""
