"""The `erase` command: remove rows from a collection and from what follows from it."""
