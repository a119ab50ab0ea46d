"""The commands of a page of the documentation, and the machines that it speaks of, on which they run: shells
of this one, each with its own folder and environment.

A block is fenced as `console`: a line that begins with `$ ` is a command, the lines below it are what it
prints; one that ends with a backslash goes on below. `…` stands for any text; a line of only `…` for any
lines. A comment `<!-- setup … -->` is run first.
A block with a title, as in ```` ```yaml title="shop.yaml" ````, is a file that the reader writes there.
On a page about several machines titles say where: ```` ```console title="master, worker" ````,
```` ```yaml title="laptop, driver: mzplan.yaml" ````.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.servers.process import descendants_of, send, wait_until_gone
from tests.warm_commands import warm_mzplan

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?:console(?: title=\"(?P<machine>\w+(?:, \w+)*)\")?"
    r"|\w+ title=\"(?:(?P<machines>\w+(?:, \w+)*): )?(?P<file>[\w.]+)\")\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_LINE = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?")  # with those that it goes on in
SETUP = re.compile(r"<!-- setup\n(.*?)-->", re.DOTALL)
# What a command says only where the machine keeps it waiting for over a second.
_PROGRESS = re.compile(r"^ *… \d+ s: .*\n", re.MULTILINE)
_MARK = "@@ended@@"
# A file system of one's own, in which folders are empty that others see: as root, or as one's own root.
_APART = (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount"))
_HIDE = 'for folder in "$@"; do mount -t tmpfs none "$folder" || exit 9; done; exec bash'


@dataclass(frozen=True)
class Command:
    """A command of a page, and what it is to print. `machines`: where; empty on a page about one."""

    text: str
    expected: str
    machines: tuple[str, ...] = ()


def commands(page: Path, replaced: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a page; `replaced`: what stands for what, such as a free port for one of the page."""
    found, text = [], page.read_text(encoding="utf-8")
    for before, after in (replaced or {}).items():
        assert before in text, f"{page.name} has no {before}"
        text = text.replace(before, after)
    for block in _BLOCK.finditer(text):
        body = textwrap.dedent(block["body"])
        machines = tuple((block["machine"] or block["machines"] or "").split(", "))
        machines = machines if machines != ("",) else ()
        if block["file"]:
            text = f"cat > {block['file']} <<'@@file@@'\n{body}@@file@@"
            found.append(Command(text, "", machines))
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            line = _LINE.match(part)
            assert line is not None
            found.append(Command(line[0].rstrip("\n"), part[line.end() :].strip("\n"), machines))
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    if not _PROGRESS.search(f"{expected}\n"):
        printed = _PROGRESS.sub("", printed)
    pattern = ""
    for line in expected.split("\n"):
        if line == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"\s*\n"
    text = "\n".join(line.rstrip() for line in printed.strip("\n").split("\n")) + "\n"
    return re.fullmatch(pattern, text) is not None or (not expected and not printed.strip())


class Machine:
    """A shell that lives on: what is set in it stays, and what it starts in the background are its children.

    Its home and working directory is `folder`. Of this process's environment it has nothing but the PATH, on
    which `mzplan` is this checkout's. What is in `hidden` it can't see, where this system lets us hide it.
    """

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], hidden: Sequence[Path] = ()
    ) -> None:
        self.name, self.folder = name, folder
        tools = folder / ".bin"
        tools.mkdir(parents=True)
        (tools / "mzplan").symlink_to(warm_mzplan())
        self._process = subprocess.Popen(
            _shell(hidden),
            cwd=folder,
            env={
                "PATH": f"{tools}:{os.environ['PATH']}",
                "HOME": str(folder),
                "LANG": "C.UTF-8",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, name=f"machine-{name}", daemon=True).start()

    def run(self, command: Command, seconds: float = 240.0) -> None:
        """Run a command of a page; AssertionError where it fails, prints something else, or does not end."""
        code, printed = self.call(command.text, seconds)
        assert code == 0, f"{self.name}: {command.text}\n{printed}"
        assert matches(command.expected, printed), (
            f"{self.name}: {command.text}\n--- on the page\n{command.expected}\n--- printed\n{printed}"
        )

    def call(self, text: str, seconds: float = 240.0) -> tuple[int, str]:
        """Exit code and output of a command."""
        assert self._process.stdin is not None
        # The shell reads its commands from stdin: a command that reads from it would get the next ones.
        self._process.stdin.write(f"{{ {text}\n}} < /dev/null\necho {_MARK}$?\n")
        self._process.stdin.flush()
        until, printed = time.monotonic() + seconds, ""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name}: {text}\ndoes not end; so far: {printed}") from None
            before, mark, code = line.partition(_MARK)
            printed += before
            if mark:
                return int(code), printed

    def processes(self, named: str = "") -> list[int]:
        """The pids of what it has started that have this text in their command line."""
        return [pid for pid in descendants_of(self._process.pid) if named in command_line(pid)]

    def close(self) -> None:
        """End all that it has started: in order, then at once."""
        for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
            left = self.processes()
            for pid in left:
                send(pid, number)
            if wait_until_gone(left, timeout_s=patience):
                break
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


def run_page(
    page: Path, folder: Path, seconds: float = 60.0, replaced: Mapping[str, str] | None = None
) -> None:
    """Run all commands of a page in one shell; AssertionError where one fails or prints something else."""
    environment = {name: value for name, value in os.environ.items() if name != "PATH"}
    machine = Machine(page.stem, folder, {**environment, "COLUMNS": "100"})
    python = folder / ".bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={DOCS.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    try:
        setup = "\n".join(SETUP.findall(page.read_text(encoding="utf-8")))
        code, printed = machine.call(f"(set -e\n{setup}\n)", seconds)
        assert code == 0, printed
        for command in commands(page, replaced):
            machine.run(command, seconds)
    finally:
        machine.close()


def command_line(pid: int) -> str:
    """A process's arguments; empty for one that has ended."""
    return _of(pid, "cmdline")


def environment_of(pid: int) -> str:
    """The environment that a process was started with; empty for one that has ended."""
    return _of(pid, "environ")


def _of(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _shell(hidden: Sequence[Path]) -> list[str]:
    for apart in _APART if hidden else ():
        tried = [*apart, "sh", "-c", f"{_HIDE} -c true", "sh", *map(str, hidden)]
        if sys.platform == "linux" and subprocess.run(tried, capture_output=True).returncode == 0:
            return [*apart, "sh", "-c", _HIDE, "sh", *map(str, hidden)]
    return ["bash"]
