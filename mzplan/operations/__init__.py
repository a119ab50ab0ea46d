"""One short function per verb: the only place where configuration, plan, state and runners meet.

Nothing here decides what should be (the planner does) or touches Spark (the runners do). The running side
is reached only through the store, and through the `Runners` that the command line hands in.
"""
