"""Durable steps: what each micro-batch read and wrote, so that it can be listed, replayed and verified.

Shared by both sides: the runner writes the index, commands read it. Nothing here imports pyspark.
"""
