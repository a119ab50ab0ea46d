"""`mzplan verify`, where rows must be made by Spark: steps of sources and sinks, and what a target holds."""
