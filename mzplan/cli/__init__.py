"""The command line: click only here. Arguments in, an operation called, a renderer chosen.

Commands are loaded when they are called, and import what they need inside: start-up is what people feel.
"""
