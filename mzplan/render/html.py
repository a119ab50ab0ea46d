"""HTML that can't be broken out of: elements are made by calls, and every text in them is escaped.

Names, errors and messages come from files and the store, so all of them are hostile. Only `Markup` is taken
as it is, and only this module makes it. Python's own `html.escape` does the work: `mzplan plan --html` is for
the base installation, and two more packages there would cost more than they save.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from mzplan.render.text import safe

_VOID = frozenset({"meta", "link", "input", "br", "hr"})
_RAW = frozenset({"style", "script"})


class Markup(str):
    """HTML that is escaped already."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]
Attribute = str | int | float | bool | None


def element(tag: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """`<tag …>content</tag>`. A name of an attribute may end in `_` (`class_`), and other `_` stand for `-`;
    False and None leave it out, True gives it no value."""
    start = tag + "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{_text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{joined(content)}</{tag}>")


def joined(content: Content) -> Markup:
    """What stands in an element: texts escaped, markup as it is, in order."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, str | int | float):
        return Markup(_text(str(content)))
    return Markup("".join(map(joined, content)))


def static_text(package: str, name: str) -> str:
    """The text of a style sheet or script that lies beside the code."""
    return (files(package) / "static" / name).read_text(encoding="utf-8")


def inlined(name: str, own: str) -> Markup:
    """A `<style>` or `<script>` of mzplan's own (a `static_text`), never of anybody's values: nothing is
    escaped there."""
    assert name in _RAW and f"</{name}" not in own.lower()
    return Markup(f"<{name}>{own}</{name}>")


def _name(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")


def _text(text: str) -> str:
    """Escaped, its lines kept; invisible characters and those that reorder others are made visible."""
    if text.isascii() and text.isprintable():
        return escape(text)
    return "\n".join(escape(safe(line)) for line in text.split("\n"))
