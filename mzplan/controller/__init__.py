"""What carries out commands: the executor interface, in-memory and (in mzplan.spark) on Spark.

Belongs to the running side: it may not import config, plan, operations, render or cli.
"""
