"""`mzplan ddl`: the tables and grants that the sinks of a project need."""
