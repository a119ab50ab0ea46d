"""Spark SQL without Spark: its text, its names, its functions, and the types of its expressions."""
