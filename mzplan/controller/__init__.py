"""The storage controller: hosts queries and collections, and decides their next steps.

Its I/O goes through the store and two protocols: `executor` hosts queries, and `storage` keeps collections.
mzplan.spark implements both on Spark and Delta; `memory` implements both without either.
docs/internals/controller.md compares its methods with the trait that mzplan is modeled on. The package may
not import config, plan, operations, render or cli, nor the runner that calls it.
"""
