"""The command blocks of a page, and if a command prints what the page shows; tests/machines.py runs them.

A block is fenced as `console`: a line that begins with `$ ` is a command, the lines below it are what it
prints; one that ends with a backslash goes on below. `…` stands for any text; a line of only `…` for any
lines. A comment `<!-- setup … -->` is run first.
A block with a title, as in ```` ```yaml title="shop.yaml" ````, is a file that the reader writes there.
On a page about several machines titles say where: ```` ```console title="master, worker" ````,
```` ```yaml title="laptop, driver: mzplan.yaml" ````.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
