"""Markdown that can't be broken out of: fences, code spans, foldable sections, and lengths as a forge counts.

Free text (values, errors) appears only in fences and code spans. There it can't close a section, mention a
person, or become a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

from mzplan.render.text import elided, safe

LIMIT = 65_536  # characters of a comment on GitHub; other forges allow more
_NAME = 400  # characters of a name, or of edits shown in place of a name
_OF_A_URL = "%:/?#[]@!$&'*+,;=-._~"  # kept in a URL; characters that could end the link become %XX
_TICKS = re.compile(r"`+")


def length(text: str) -> int:
    """Return the length as the strictest forge counts it: in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def shorten(text: str, most: int) -> str:
    """Return the text, or as many of its first lines as fit, and a note about the cut."""
    if length(text) <= most:
        return text
    lines: list[str] = []
    room = most - 20
    for line in text.splitlines():
        room -= length(line) + 1
        if room < 0:
            break
        lines.append(line)
    return "\n".join([*lines, "… (cut)"])


def fit_comment(parts: Iterable[str]) -> str:
    """Return the parts as one comment, ending in a newline.

    Parts that would exceed a forge's limit are omitted completely, with a note. So the comment can always be
    posted.
    """
    kept_parts, dropped, room = list[str](), 0, LIMIT - 200  # leaves room for the note
    for part in parts:
        size = length(part) + 2
        kept_parts, dropped, room = (
            ([*kept_parts, part], dropped, room - size) if size < room else (kept_parts, dropped + 1, room)
        )
    if dropped:
        kept_parts.append(
            f"{many(dropped, 'part')} of this didn't fit into a comment: `mzplan plan` shows everything."
        )
    return "\n\n".join(kept_parts) + "\n"


def fence(language: str, lines: Iterable[str]) -> str:
    """Return a fenced block that its content can't end. Lines are made printable."""
    shown = [safe(line) for text in lines for line in text.split("\n")]
    longest = max((len(run) for line in shown for run in _TICKS.findall(line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join([f"{ticks}{language}", *shown, ticks])


def code(text: str) -> str:
    """Return a code span that its content can't end."""
    shown = safe(text)
    longest = max((len(run) for run in _TICKS.findall(shown)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if "`" in shown or not shown.strip() else ""
    return f"{ticks}{space}{shown}{space}{ticks}"


def link(text: str, url: str) -> str:
    """Return a link that its URL can't end or turn into another one. `text` isn't escaped."""
    return f"[{text}](<{quote(url, safe=_OF_A_URL).replace('&', '&amp;')}>)"


def folded(summary: str, body: str) -> str:
    """Return a foldable section. `summary` isn't escaped, so it must not come from a user."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def alert(kind: str, lines: Iterable[str]) -> str:
    """Return a coloured box (`WARNING`, `CAUTION`). Forges that don't support it show a quotation."""
    return "\n".join([f"> [!{kind}]", *(f"> {line}".rstrip() for line in lines)])


def many(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 query`, `1,300 queries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def names(addresses: Iterable[object], most: int = 8, *, longest: int = _NAME, room: int = LIMIT) -> str:
    """Format names: `a`, `b` and 3 more.

    Shows at most `most` names of at most `longest` characters each, if there is room.
    """
    listed = [str(address) for address in addresses]
    shown = [code(elided(text, longest)) for text in listed[:most]]
    while len(shown) > 1 and sum(map(length, shown)) > room:
        shown.pop()
    more = len(listed) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
