"""`mzplan ddl`: the tables and grants that a project's sources and sinks need."""
