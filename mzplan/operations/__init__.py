"""One short function for each command: the only package that connects configuration, plan, state and runners.

Nothing here decides what should be (the planner does) or uses Spark (the runners do). The running side is
reached only through the store, and through the `Runners` that the command line passes in.
"""
