"""Where a command writes: results on stdout, all the rest on stderr. Either may be closed, full or a pipe
whose reader has left; a command that is changing something goes on then, and the exit code shows it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import time
from typing import Any, TextIO

from mzplan.host.guarded import write_whole
from mzplan.model.diagnostics import error
from mzplan.render.text import safe_json
from mzplan.secrets.resolved import scrub

_LOWEST = 5  # lines
_NARROWEST = 20  # columns; what reports less (0: unknown) is taken for 80


class Streams:
    """The two streams of one command line."""

    def __init__(self) -> None:
        self.no_color = False
        self.problem: OSError | None = None  # why results could not be written (not: nobody reads them)
        self.reader_gone = False
        self.documents = 0

    def out(self, text: str) -> None:
        """Results."""
        self._write(sys.stdout, f"{text.rstrip()}\n", results=True)

    def raw(self, text: str) -> None:
        """Results that bring their own line ends (and what moves the cursor)."""
        self._write(sys.stdout, text, results=True)

    def data(self, data: bytes) -> None:
        """Results that are no text, or text in UTF-8 whatever the terminal's encoding is."""
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:  # closed, or no real stream
            self.raw(data.decode(errors="backslashreplace"))
            return
        try:
            buffer.write(data)
            buffer.flush()
        except OSError as problem:
            self._failed(sys.stdout, problem, results=True)

    def document(self, content: Any) -> None:
        """Results as one JSON document."""
        self.documents += 1
        text = safe_json(json.dumps(content, indent=2, ensure_ascii=False))
        try:
            text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:  # a lone surrogate, or an output that is not UTF-8
            text = json.dumps(content, indent=2)
        self.out(text)

    def err(self, text: str) -> None:
        """A line of progress, or an error for people."""
        self._write(sys.stderr, f"{scrub(text).rstrip()}\n")

    def live(self, text: str) -> None:
        """What is to stay on the last line of the terminal; no line end."""
        self._write(sys.stderr, scrub(text))

    def reader_left(self) -> None:
        """Nobody reads the results: let them go nowhere."""
        self.reader_gone = True
        if sys.stdout is not None:
            _silence(sys.stdout)

    def is_read_after(self, seconds: float) -> bool:
        """Wait so long, or until the reader of the results leaves; whether somebody reads them still."""
        until = time.monotonic() + seconds
        try:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)  # reports a closed other end without being asked
            if poll.poll(seconds * 1000):
                self.reader_left()
        except (OSError, ValueError, AttributeError):  # closed, or no real stream
            time.sleep(max(0.0, until - time.monotonic()))
        return not self.reader_gone

    @property
    def color(self) -> bool:
        """Whether results may have colours."""
        return self._color(sys.stdout)

    @property
    def error_color(self) -> bool:
        return self._color(sys.stderr)

    @property
    def is_live(self) -> bool:
        """Whether stderr is a terminal on which a line can be drawn again."""
        return _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"

    @property
    def is_screen(self) -> bool:
        """Whether stdout is a terminal that can be drawn anew."""
        return _is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"

    def _color(self, stream: TextIO | None) -> bool:
        plain = self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and _is_terminal(stream)

    def _write(self, stream: TextIO | None, text: str, *, results: bool = False) -> None:
        if stream is None:  # closed before we began
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
    """A result into a file, whole or not at all (or into a pipe). Raises MzplanError MZ035."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: str, data: bytes) -> None:
    """The same, of bytes."""
    try:
        write_whole(path, data)
    except OSError as problem:
        why = f"{problem.strerror or problem}."
        raise error("MZ035", f"Cannot write {path}", why, "check the folder and its permissions.") from None


def width() -> int:
    """Columns of the terminal that stderr is; 80 if stderr is no terminal, or does not say."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = shutil.get_terminal_size().columns
    return columns if columns >= _NARROWEST else 80


def height() -> int:
    """Lines of the terminal that stdout is; 24 if stdout is no terminal, or does not say."""
    try:
        lines = os.get_terminal_size(sys.stdout.fileno()).lines
    except (OSError, ValueError, AttributeError):
        lines = shutil.get_terminal_size().lines
    return lines if lines >= _LOWEST else 24


def redrawn(text: str, drawn: int, lines: int) -> tuple[str, int]:
    """What draws a text over the one before it, of `drawn` lines (0: none yet), on a screen of so many lines;
    and how many lines it has. What was on the screen before both stays; what has no room is counted."""
    rows = text.rstrip("\n").split("\n")
    if len(rows) > lines - 1:
        left = len(rows) - (lines - 2)
        rows = [*rows[: lines - 2], f"… {left} lines more: the screen is too small for them"]
    back = f"\x1b[{drawn}F" if drawn else ""
    # No line may wrap, or it would be two; and nothing is cleared before there is something else: no flicker.
    body = "".join(f"{line}\x1b[K\n" for line in rows)
    return f"\x1b[?7l{back}{body}\x1b[J\x1b[?7h", len(rows)


def is_interactive() -> bool:
    """Whether somebody can be asked."""
    return _is_terminal(sys.stdin)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _silence(stream: TextIO) -> None:
    """Let what is written from now on, and what is still buffered, go nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
