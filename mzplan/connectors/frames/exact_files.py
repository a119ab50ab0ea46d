"""Options to read exactly the given files in a batch, whatever characters their paths contain."""

from __future__ import annotations

# Spark takes a path with any of [ ] { } * ? \ as a pattern, unless the first option forbids that. Then it
# replaces each such path with the whole list of files, and reads the rows several times. A recursive lookup
# reads each file once, but finds no partitions. With partitions, Spark reads each file once anyway.
EXACT_PARTITIONED_FILES = {"__globPaths__": "false"}
EXACT_FILES = {**EXACT_PARTITIONED_FILES, "recursiveFileLookup": "true"}
