"""PostgreSQL as a source, by a DurableInputEndpoint: what its tables hold, then what changes in them."""
