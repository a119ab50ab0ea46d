"""Avro in Confluent's wire format: decoded and encoded by Python tasks, to which most modules are sent.

A module that is sent imports nothing else of mzplan, and other packages only inside functions.
"""
