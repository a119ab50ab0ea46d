"""The storage controller: what is hosted on an instance, and the next step of each query and collection.

It decides, and does its I/O through the store and two protocols: `executor` hosts queries, `storage` keeps
collections. mzplan.spark implements both on Spark and Delta, `memory` without either.
docs/internals/controller.md compares its methods with the trait that it comes from. Belongs to the running
side: it may not import config, plan, operations, render or cli, nor the runner that calls it.
"""
