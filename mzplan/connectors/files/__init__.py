"""Files in a folder: Spark's own file stream as a source and as a sink."""
