"""Options to read exactly the given files in a batch, whatever signs their paths hold."""

from __future__ import annotations

# Spark takes a path with one of [ ] { } * ? \ for a pattern, unless the first option forbids that. Then it
# puts the whole list of files in the place of each such path, and reads the rows several times. A recursive
# lookup reads each file once, but finds no partitions. With partitions, Spark reads each file once anyway.
EXACT_PARTITIONED_FILES = {"__globPaths__": "false"}
EXACT_FILES = {**EXACT_PARTITIONED_FILES, "recursiveFileLookup": "true"}
