"""One-off tasks, which run before their query starts. Each kind of task has a module."""
