"""docs/errors.md explains every code, and its examples are what mzplan prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mzplan.render.diagnostics import render_diagnostics
from tests.unit.config_files import errors

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = {
    part[:5]: part[5:]
    for part in re.split(r"^### (?=MZ\d{3}: )", PAGE.replace("\n## ", "\n### MZ---: "), flags=re.MULTILINE)[
        1:
    ]
}
SECTIONS.pop("MZ---", None)


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def test_every_code_is_explained() -> None:
    used = {
        code
        for path in (ROOT / "mzplan").rglob("*.py")
        for code in re.findall(r"\"(MZ\d{3})\"", path.read_text(encoding="utf-8"))
    }
    assert used - set(SECTIONS) == set()
    assert list(SECTIONS) == sorted(SECTIONS)


def test_the_table_of_families_has_every_code_under_its_heading() -> None:
    families = re.findall(r"^\| (MZ\d{3})(?: – (MZ\d{3}))? \| \[.*\]\(#(.*)\) \|$", PAGE, flags=re.MULTILINE)
    of = {
        code: link for first, last, link in families for code in SECTIONS if first <= code <= (last or first)
    }
    under, heading = {}, ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            heading = re.sub(r"[^a-z0-9 ]", "", line[3:].lower()).replace(" ", "-")
        elif line.startswith("### MZ"):
            under[line[4:9]] = heading
    assert of == under


@pytest.mark.parametrize("code", SECTIONS)
def test_a_section_has_cause_fix_and_an_example(code: str) -> None:
    section = SECTIONS[code]
    assert "\n**Cause.** " in section and "\n**Fix.** " in section
    (example,) = blocks(section, "text")
    assert f"[{code}]: " in example
    assert "Fix: " in example or example.startswith("notice")


@pytest.mark.parametrize("code", [code for code in SECTIONS if blocks(SECTIONS[code], "yaml")])
def test_the_examples_are_real(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths are shown as seen from here
    files = {text.split("\n")[0].removeprefix("# "): text for text in blocks(SECTIONS[code], "yaml")}
    found = errors(tmp_path, dict(files))
    assert render_diagnostics(found, False, str(tmp_path)).replace(f"{tmp_path}/", "") == blocks(
        SECTIONS[code], "text"
    )[0].rstrip("\n")
    assert {d.code for d in found} == {code}
