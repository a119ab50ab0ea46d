"""Commands in processes of their own, without the start of a Python: what has imported all forks.

As a script: a line of JSON in, `{"commands": [arguments, …], "signal": number, "delay": seconds}`, and one
out, `[[code, stdout, stderr], …]`. The signal (0: none) goes to the first command, so long after its begin.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from types import TracebackType
from typing import Any

from tests.unit.cli_runs import Ran
from tests.warm_commands import import_commands

SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Forks:
    """That process, as a context manager. The code of a command that a signal has killed is negative."""

    def __enter__(self) -> Forks:
        command = [sys.executable, "-m", "tests.faults.forks"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def run(self, *commands: list[str], number: int = 0, delay: float = 0.0) -> list[Ran]:
        """All at once; returns when the last has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"commands": commands, "signal": number, "delay": delay}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return [Ran(*found) for found in json.loads(self._process.stdout.readline())]


def _begin(arguments: list[str], out: Any, err: Any) -> int:
    from mzplan.cli.main import main

    # One that comes before the child is ready would end it without a word.
    signal.pthread_sigmask(signal.SIG_BLOCK, SENT)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT)
        return pid
    code = 1
    try:
        # As in a terminal; where tests run in the background they may be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT)
        main(arguments)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except KeyboardInterrupt:  # before, or after, the command line took it
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _serve() -> None:
    import_commands()
    for line in sys.stdin:
        asked = json.loads(line)
        pairs = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in asked["commands"]]  # noqa: SIM115
        pids = [_begin(arguments, *pair) for arguments, pair in zip(asked["commands"], pairs, strict=True)]
        if asked["signal"]:
            time.sleep(asked["delay"])
            os.kill(pids[0], asked["signal"])  # not waited for yet: the pid is still its own
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        texts = [[file.seek(0) or file.read().decode() for file in pair] for pair in pairs]
        print(json.dumps([[code, *both] for code, both in zip(codes, texts, strict=True)]), flush=True)


if __name__ == "__main__":
    _serve()
