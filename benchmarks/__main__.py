"""`python -m benchmarks [NAME …]`: run the named benchmarks, or all."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    *("plan_scale", "restart", "ingest", "avro", "postgres", "postgres_source", "kafka_sink"),
    *("many_queries", "long_run"),
)


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        if name not in NAMES:
            sys.exit(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
