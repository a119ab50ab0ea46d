"""The console as a sink: rows on the runner's standard output."""
