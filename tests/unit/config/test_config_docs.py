"""docs/errors.md explains every code that the program has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = {
    part[:5]: part[5:]
    for part in re.split(r"^### (?=MZ\d{3}: )", PAGE.replace("\n## ", "\n### MZ---: "), flags=re.MULTILINE)[
        1:
    ]
}
SECTIONS.pop("MZ---", None)


def test_every_code_has_a_cause_and_a_fix() -> None:
    used = {
        code
        for path in (ROOT / "mzplan").rglob("*.py")
        for code in re.findall(r"MZ\d{3}(?!\d)", path.read_text(encoding="utf-8"))
    }
    assert used == set(SECTIONS)
    assert list(SECTIONS) == sorted(SECTIONS)
    parts = ("\n**Cause.** ", "\n**Fix.** ")
    assert not [code for code, text in SECTIONS.items() if not all(part in text for part in parts)]
