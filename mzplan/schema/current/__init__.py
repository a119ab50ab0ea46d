"""Traces current views: which rows of a view a changed row of an input can affect.

A trace is SQL over two relations for each input: its changed rows, and all rows that it has had before or has
now. It may find more rows than necessary, and never fewer. If a part of the query can't be computed over
single rows, such as a condition with an aggregate, it is left out, so that more rows count as affected.
"""
