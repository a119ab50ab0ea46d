"""What single commands add to the core: a room each, with its command, what it does and plans, and how that
is shown. No room imports another, and nothing of the core imports one: the command line finds them by name
(mzplan.cli.main). So leaving one out is deleting its folder, and its line there.
"""
