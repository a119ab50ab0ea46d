"""PostgreSQL as a source through a DurableInputEndpoint: the tables' rows, then their changes."""
