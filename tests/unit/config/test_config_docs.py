"""docs/errors.md explains every code that the program has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (MZ\d{3}): (.*?)(?=^##)", f"{PAGE}\n##", re.MULTILINE | re.DOTALL))


def test_every_code_has_a_cause_and_a_fix() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "mzplan").rglob("*.py"))
    used = {code for text in texts for code in re.findall(r"MZ\d{3}(?!\d)", text)}
    assert used == set(SECTIONS)
    assert list(SECTIONS) == sorted(SECTIONS)
    parts = ("\n**Cause.** ", "\n**Fix.** ")
    assert not [code for code, text in SECTIONS.items() if not all(part in text for part in parts)]
