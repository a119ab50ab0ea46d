"""The parts of `mzplan verify` that need Spark."""
