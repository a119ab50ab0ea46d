"""docs/errors.md explains every code that the program has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = {
    part[:5]: part[5:]
    for part in re.split(r"^### (?=MZ\d{3}: )", PAGE.replace("\n## ", "\n### MZ---: "), flags=re.MULTILINE)[
        1:
    ]
}
SECTIONS.pop("MZ---", None)


def test_every_code_is_explained() -> None:
    used = {
        code
        for path in (ROOT / "mzplan").rglob("*.py")
        for code in re.findall(r"MZ\d{3}(?!\d)", path.read_text(encoding="utf-8"))
    }
    assert used == set(SECTIONS)
    assert list(SECTIONS) == sorted(SECTIONS)


def test_the_table_of_families_has_every_code_under_its_heading() -> None:
    families = re.findall(r"^\| (MZ\d{3})(?: – (MZ\d{3}))? \| \[.*\]\(#(.*)\) \|$", PAGE, flags=re.MULTILINE)
    of = {
        code: link for first, last, link in families for code in SECTIONS if first <= code <= (last or first)
    }
    under, heading = {}, ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            heading = re.sub(r"[^a-z0-9_ ]", "", line[3:].lower()).replace(" ", "-")
        elif line.startswith("### MZ"):
            under[line[4:9]] = heading
    assert of == under


def test_the_program_acts_on_no_code() -> None:
    """Codes are for people: a problem that is treated in its own way has a kind."""
    compared = re.compile(
        r"(\.code|error_code|\bcode) (==|!=) (\"MZ|\w+\.code)|(\.code|error_code) (not )?in "
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "mzplan").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if compared.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("code", SECTIONS)
def test_a_section_has_a_cause_and_a_fix(code: str) -> None:
    assert "\n**Cause.** " in SECTIONS[code] and "\n**Fix.** " in SECTIONS[code]
