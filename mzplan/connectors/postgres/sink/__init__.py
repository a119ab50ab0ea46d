"""PostgreSQL as a sink: binary COPY, straight or through a staging table; steps are kept beside the rows."""
