"""`mzplan logs`: what a runner has logged of a query."""
