"""`mzplan why` and `events`: what happened to queries and why, from the store alone."""
