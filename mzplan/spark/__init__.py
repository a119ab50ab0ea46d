"""The Spark side of a runner: the session, streaming queries, collections and checkpoints.

Implements mzplan.controller.executor.Executor. What a type of source or sink is, mzplan.connectors says;
when a query runs, the runner does. pyspark is imported inside functions only, so that checks work before a
session is open. May not import config, plan, operations, render, cli or runner.
"""
