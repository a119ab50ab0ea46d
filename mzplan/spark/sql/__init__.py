"""SQL on Spark: what a query may contain, and how Spark computes views and the columns of sinks."""
