"""What a change does to the state, the columns and the rows of queries, and to the targets of sinks."""
