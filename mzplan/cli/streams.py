"""The output of a command: results on stdout, everything else on stderr.

Either stream may be closed, full, or a pipe without a reader. A command that is changing something then
continues, and the exit code shows the problem.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from mzplan.host.guarded_folder import open_whole, write_whole
from mzplan.model.diagnostics import MzplanError, error
from mzplan.render.text import safe_json
from mzplan.secrets.resolved import scrub

_LOWEST = 5  # lines
_NARROWEST = 20  # columns; a smaller width (0: unknown) counts as 80


class Streams:
    def __init__(self) -> None:
        self.no_color = False
        self.problem: OSError | None = None  # why writing results failed, unless the reader has left
        self.reader_gone = False
        self.documents = 0

    def out(self, text: str) -> None:
        """Print results."""
        self._write(sys.stdout, f"{text.rstrip()}\n", results=True)

    def raw(self, text: str) -> None:
        """Print results with their own line ends (or cursor movements)."""
        self._write(sys.stdout, text, results=True)

    def data(self, data: bytes) -> None:
        """Print binary results, or text in UTF-8 whatever the terminal's encoding is."""
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:  # closed, or not a real stream
            self.raw(data.decode(errors="backslashreplace"))
            return
        try:
            buffer.write(data)
            buffer.flush()
        except OSError as problem:
            self._failed(sys.stdout, problem, results=True)

    def document(self, content: Any) -> None:
        """Print results as one JSON document."""
        self.documents += 1
        text = safe_json(json.dumps(content, indent=2, ensure_ascii=False))
        try:
            text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:  # a lone surrogate, or an output that is not UTF-8
            text = json.dumps(content, indent=2)
        self.out(text)

    def err(self, text: str) -> None:
        """Print a line of progress, or an error for people."""
        self._write(sys.stderr, f"{scrub(text).rstrip()}\n")

    def live(self, text: str) -> None:
        """Print text that stays on the last line of the terminal; no line end."""
        self._write(sys.stderr, scrub(text))

    def reader_left(self) -> None:
        """Discard results from now on: their reader has left."""
        self.reader_gone = True
        if sys.stdout is not None:
            _silence(sys.stdout)

    def is_read_after(self, seconds: float) -> bool:
        """Wait this long, or until the reader of the results leaves.

        Return whether there still is a reader.
        """
        until = time.monotonic() + seconds
        try:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)  # reports a closed other end without being asked
            if poll.poll(seconds * 1000):
                self.reader_left()
        except (OSError, ValueError, AttributeError):  # closed, or not a real stream
            time.sleep(max(0.0, until - time.monotonic()))
        return not self.reader_gone

    @property
    def color(self) -> bool:
        """Return whether results may have colours."""
        return self._color(sys.stdout)

    @property
    def error_color(self) -> bool:
        return self._color(sys.stderr)

    @property
    def is_live(self) -> bool:
        """Return whether stderr is a terminal on which a line can be redrawn."""
        return _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"

    @property
    def is_screen(self) -> bool:
        """Return whether stdout is a terminal that can be redrawn."""
        return _is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"

    def _color(self, stream: TextIO | None) -> bool:
        plain = self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and _is_terminal(stream)

    def _write(self, stream: TextIO | None, text: str, *, results: bool = False) -> None:
        if stream is None:  # closed before the command began
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = stream.encoding or "ascii"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except OSError as problem:
            self._failed(stream, problem, results=results)

    def _failed(self, stream: TextIO, problem: OSError, *, results: bool) -> None:
        _silence(stream)
        if isinstance(problem, BrokenPipeError):
            self.reader_gone |= results
        elif results and self.problem is None:
            self.problem = problem


def write_text(path: str, text: str) -> None:
    """Write a result to a file, atomically (or to a pipe). Raises MzplanError MZ035."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: str, data: bytes) -> None:
    """Write a binary result to a file, like write_text."""
    try:
        write_whole(path, data)
    except OSError as problem:
        raise unwritable(path, problem) from None


@contextlib.contextmanager
def opened_text(path: str) -> Iterator[Callable[[str], None]]:
    """Open a result file before the work, and yield a function that takes its text.

    If the work fails, the old file stays. Raises MzplanError MZ035.
    """
    written: list[str] = []
    with contextlib.ExitStack() as file:
        try:
            stream = file.enter_context(open_whole(path))
        except OSError as problem:
            raise unwritable(path, problem) from None
        yield written.append
        try:
            stream.write("".join(written).encode(errors="backslashreplace"))
            file.close()
        except OSError as problem:
            raise unwritable(path, problem) from None


def unwritable(path: str | Path, problem: OSError) -> MzplanError:
    """Return MZ035 for a file or folder that can't be written."""
    return error(
        "MZ035.cannot-write-check-folder-permissions", path=path, strerror=problem.strerror or problem
    )


def width() -> int:
    """Return the columns of stderr's terminal; 80 if unknown, or without a terminal."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = _given_size().columns
    return columns if columns >= _NARROWEST else 80


def height() -> int:
    """Return the lines of stdout's terminal; 24 if unknown, or without a terminal."""
    try:
        lines = os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError, AttributeError):
        lines = _given_size().lines
    return lines if lines >= _LOWEST else 24


def _given_size() -> os.terminal_size:
    """Return the size in COLUMNS and LINES; without them, the size of stdout's terminal, or 80 by 24."""
    import shutil  # it imports all compressions

    return shutil.get_terminal_size()


def redrawn(text: str, drawn: int, lines: int) -> tuple[str, int]:
    """Return the escape codes that redraw `text` over the previous text, and the number of lines drawn.

    - `drawn`: the number of lines of the previous text (0: none).
    - `lines`: the screen height; if some lines don't fit, their number is shown instead.

    Anything above is left untouched.
    """
    rows = text.rstrip("\n").split("\n")
    if len(rows) > lines - 1:
        hidden = len(rows) - (lines - 2)
        rows = [*rows[: lines - 2], f"… {hidden} more lines: the screen is too small"]
    back = f"\x1b[{drawn}F" if drawn else ""
    # Lines must not wrap, and nothing is cleared before its replacement is drawn, to avoid flicker.
    body = "".join(f"{line}\x1b[K\n" for line in rows)
    return f"\x1b[?7l{back}{body}\x1b[J\x1b[?7h", len(rows)


def is_interactive() -> bool:
    """Return whether a user can be asked."""
    return _is_terminal(sys.stdin)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _silence(stream: TextIO) -> None:
    """Discard everything written from now on, and everything still buffered."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
