"""PostgreSQL as a sink: binary COPY, directly or through a staging table. Steps are recorded next to the
rows."""
