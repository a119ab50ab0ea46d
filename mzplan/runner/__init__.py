"""The runner: follows the store as a GitOps agent follows a repository, and reconciles its queries.

The runner may not import config, plan, operations, render or cli. It uses only the Executor interface; `main`
alone chooses Spark.
"""
