"""why and events: what has happened to queries, and for which cause, from the store alone."""
