"""The Spark side of a runner: the session, streaming queries, collections and checkpoints.

Implements mzplan.controller.executor.Executor. mzplan.connectors defines the types of sources and sinks; the
runner decides when a query runs. pyspark is imported only inside functions, so that checks work before a
session is open. Must not import config, plan, operations, render, cli or runner.
"""
