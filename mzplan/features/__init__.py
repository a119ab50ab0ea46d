"""Features: single commands that the core doesn't need.

Each module or folder has a command, its operation, plans and rendering. No feature imports another, and the
core imports none: the command line finds them by name (mzplan.cli.main). To leave one out, delete it and
its line there.
"""
