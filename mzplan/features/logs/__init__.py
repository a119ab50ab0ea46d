"""`mzplan logs`: a runner's log lines of a query."""
