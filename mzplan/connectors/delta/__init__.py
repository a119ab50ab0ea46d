"""Delta tables as a sink: Spark's own Delta stream for append, MERGE for upsert."""
