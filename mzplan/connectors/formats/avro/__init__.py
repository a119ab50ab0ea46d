"""Avro in Confluent's wire format, both ways, by tasks in Python. Most modules are sent with their tasks.

A module that is sent imports nothing else of mzplan's, and other packages only inside functions.
"""
