"""`mzplan append`: rows for a `local` source, as one durable step."""
