"""The command line: parses arguments, calls an operation, renders the result. Only it uses click.

Commands are loaded when they are called, and import heavy modules inside, because users notice start-up time.
"""
