"""Describes the state that a relational view's query computes, and compares two descriptions without Spark.

Spark stores keys and values of a stateful operator by position and compares only their types. A description
has what Spark doesn't compare: the meaning of each key and value, and everything below the operator.
"""
