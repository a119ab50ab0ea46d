"""The command `diff`: how the rows of two generations of a collection differ."""
