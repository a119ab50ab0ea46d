"""HTML and Markdown that can't be broken out of. For HTML, calls create the elements, and escape all text in
them.

Names, errors and messages come from files and the store, so all of them count as hostile. Only `Markup` isn't
escaped, and only this module creates it. `mzplan plan --html` belongs to the base installation, so this uses
Python's own `html.escape` and no template library.

Markdown has fences, code spans, foldable sections, and lengths as a forge counts them. Free text (values,
errors) appears only in fences and code spans. There it can't close a section, mention a person, or become a
link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from urllib.parse import quote

from mzplan.render.text import elided, safe

_VOID = frozenset({"meta", "link", "input", "br", "hr"})
_RAW = frozenset({"style", "script"})


class Markup(str):
    """HTML that is already escaped."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]
Attribute = str | int | float | bool | None


def element(tag: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """Return `<tag …>content</tag>`.

    A trailing `_` of an attribute's name is dropped (`class_`), and other `_` become `-`. False and None omit
    the attribute; True gives it no value.
    """
    start = tag + "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{_text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{joined(content)}</{tag}>")


def joined(content: Content) -> Markup:
    """Return the content of an element: text is escaped, markup isn't."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, str | int | float):
        return Markup(_text(str(content)))
    return Markup("".join(map(joined, content)))


def static_text(package: str, name: str) -> str:
    """Return the text of a style sheet or script from the package's `static` folder."""
    from importlib.resources import files

    return (files(package) / "static" / name).read_text(encoding="utf-8")


def inlined(name: str, own: str) -> Markup:
    """Return a `<style>` or `<script>` with mzplan's own text (see `static_text`). It isn't escaped."""
    assert name in _RAW and f"</{name}" not in own.lower()
    return Markup(f"<{name}>{own}</{name}>")


def _name(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")


def _text(text: str) -> str:
    """Escape text, preserving line breaks.

    Invisible and bidirectional-control characters are shown as visible escapes."""
    if text.isascii() and text.isprintable():
        return escape(text)
    return "\n".join(escape(safe(line)) for line in text.split("\n"))


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
