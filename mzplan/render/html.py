"""HTML that can't be broken out of: calls create the elements, and escape all text in them.

Names, errors and messages come from files and the store, so all of them count as hostile. Only `Markup` isn't
escaped, and only this module creates it. `mzplan plan --html` belongs to the base installation, so this uses
Python's own `html.escape` and no template library.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from mzplan.render.text import safe

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
