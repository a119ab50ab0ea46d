"""`mzplan` for scripts without the start of a Python: a process that has imported all forks for each command.

As a script: serves the Unix socket that it is given. A command sends its standard streams, and where and how
it was called; what comes back is its exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COMMAND = """\
#!{python} -SE
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({place!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [b"%16d" % len(call)], [0, 1, 2])
line.sendall(call)
code = line.recv(16)
sys.exit(int(code) if code else 70)
"""


@cache
def warm_mzplan() -> str:
    """The path of that `mzplan`; what serves it ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="mzplan-warm-")
    place, path = f"{folder.name}/socket", Path(folder.name) / "mzplan"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.warm_commands", place]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    assert process.stdout is not None and process.stdout.readline(), "it did not start"
    path.write_text(_COMMAND.format(python=sys.executable, place=place))
    path.chmod(0o700)
    return str(path)


def import_commands() -> None:
    """Import what commands import, for a process whose forks run them."""
    for name in (
        "jsonschema_rs",
        "networkx",
        "mzplan.cli.apply",
        "mzplan.cli.main",
        "mzplan.cli.plan",
        "mzplan.cli.runners",
        "mzplan.cli.status",
        "mzplan.config",
        "mzplan.connectors.checks",
        "mzplan.features.alter.command",
        "mzplan.operations.validation",
        "mzplan.runner.main",
    ):
        importlib.import_module(name)


def _serve(place: str) -> None:
    import_commands()
    gc.freeze()  # or the first collection of each fork would copy all that was imported
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(16)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os._exit(_answer(line))
        line.close()


def _answer(line: socket.socket) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(line, 16, 3)
    left, call = int(head), b""
    while len(call) < left:
        call += line.recv(left - len(call))
    arguments, folder, environment = json.loads(call)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    line.sendall(str(_run(arguments)).encode())
    return 0


def _run(arguments: list[str]) -> int:
    from mzplan.cli.main import main

    try:
        main(arguments)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
