"""The page of an error code: its section of docs/errors.md, which comes with the package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from mzplan.render.html import Content, Markup, element

_CODE = re.compile(r"MZ\d{3}")
_SECTION = re.compile(r"^### (MZ\d{3}): (.*)\n((?:(?!#{1,3} ).*\n?)*)", re.MULTILINE)


def code_link(code: str) -> Markup:
    """Return a code with a link to its page; only the text if the code isn't one of mzplan's."""
    return element("a", code, href=f"/errors/{code}") if _CODE.fullmatch(code) else element("span", code)


def linked(text: str) -> Content:
    """Return a text in which each code links to its page."""
    parts = re.split(rf"\b({_CODE.pattern})\b", text)
    return [code_link(part) if number % 2 else part for number, part in enumerate(parts)]


def error_page(code: str) -> Content | None:
    """Return the page of a code; None if it has no section."""
    section = _sections().get(code)
    if section is None:
        return None
    summary, text = section
    shown: list[Content] = [element("h1", f"{code}: {summary}")]
    for number, part in enumerate(re.split(r"^```\w*\n?", text, flags=re.MULTILINE)):
        if number % 2:
            shown.append(element("pre", part.rstrip(), class_="box"))
        else:
            shown += [
                element("p", linked(paragraph.replace("**", "")))
                for paragraph in part.split("\n\n")
                if paragraph.strip()
            ]
    return shown


@cache
def _sections() -> dict[str, tuple[str, str]]:
    packaged = files("mzplan") / "_docs" / "errors.md"
    path = (
        packaged if packaged.is_file() else Path(__file__).parents[3] / "docs" / "errors.md"
    )  # in a checkout
    text = path.read_text(encoding="utf-8")
    return {match[1]: (match[2], match[3]) for match in _SECTION.finditer(text)}
