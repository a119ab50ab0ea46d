"""The same changed query in Spark Declarative Pipelines and in mzplan."""
