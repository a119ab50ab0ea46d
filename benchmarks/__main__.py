"""Measure mzplan: each benchmark prints a table of its figures on stdout, and how far it is on stderr."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence

from benchmarks.catalogue import BENCHMARKS
from benchmarks.figures import say
from benchmarks.stage import Stage


def main(arguments: list[str] | None = None) -> int:
    """Run the named benchmarks, or all. Return the exit code: 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"by default all of them: {', '.join(BENCHMARKS)}"
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="as little as shows that they run, in seconds each; the figures say nothing",
    )
    given = parser.parse_args(arguments)
    names: list[str] = given.names or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
    together = given.small or len(names) == 1
    failed = _here(names, small=given.small) if together else _apart(names)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _here(names: Sequence[str], *, small: bool) -> list[str]:
    """Run the benchmarks in this process, on the same servers. Return the names of the failed ones."""
    failed: list[str] = []
    with Stage(small=small) as stage:
        for name in names:
            say(name)
            began = time.monotonic()
            try:
                table = BENCHMARKS[name](stage)
            except Exception:
                traceback.print_exc()
                failed.append(name)
                continue
            say(f"{name}: {time.monotonic() - began:.1f} s")
            print(f"## {name}{' (small)' if small else ''}\n\n{table.markdown()}\n", flush=True)
    return failed


def _apart(names: Sequence[str]) -> list[str]:
    """Run each benchmark in its own process, on its own servers. Return the names of the failed ones.

    Otherwise the data of one benchmark would slow the next one down. The largest resident size also covers
    the whole life of a process.
    """
    command = [sys.executable, "-m", "benchmarks"]
    return [name for name in names if subprocess.run([*command, name]).returncode != 0]


if __name__ == "__main__":
    sys.exit(main())
