"""The command line: parses arguments, calls an operation, renders the result.

A command is loaded when it is called, and imports heavy modules in its functions, because users notice the
start-up time.
"""
