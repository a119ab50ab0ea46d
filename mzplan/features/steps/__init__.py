"""`mzplan steps`, `verify` and `expire`: the durable steps of a query."""
