"""What a query does once before it starts: backfills of a source, replays of a sink."""
