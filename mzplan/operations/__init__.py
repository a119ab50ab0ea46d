"""One short function for each command. Connects configuration, plan, state and runners.

The planner decides what should run, and the runners use Spark; this package does neither. It reaches the
runners only through the store and through the `Runners` that the command line passes in.
"""
