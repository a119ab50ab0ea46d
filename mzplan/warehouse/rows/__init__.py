"""The rows of steps, read without Spark: their hashes, snapshots, replays and violations."""
