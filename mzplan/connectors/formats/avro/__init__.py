"""Avro in Confluent's wire format, both ways, by tasks in Python. Most modules travel with their tasks.

A module that travels imports nothing else of mzplan's, and other packages only inside functions.
"""
