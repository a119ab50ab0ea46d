"""Forms that made the text hard to read don't come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FORMS = (
    "what is none",
    "of those that",
    "is told",
    "are told",
    "for what is no ",
    "The inverse.",
    "The same of ",
)
PLACES = ("mzplan/**/*.py", "schemas/*.json", "docs/**/*.md", "README.md")


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_not_used(form: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        for place in PLACES
        for path in ROOT.glob(place)
        for text in [path.read_text(encoding="utf-8")]
        for match in re.finditer(rf"\b{re.escape(form)}", text)
    ]
    assert not found, f"give the clause a noun or a subject: {found}"
