"""Current views on Spark: after each step, their rows are those of a batch query over their inputs."""
