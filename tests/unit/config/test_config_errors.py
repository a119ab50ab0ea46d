"""Every mistake in a file: one error with its code, at its place, with its fix."""

from __future__ import annotations

import re
from pathlib import Path

from mzplan.config import load_configuration
from tests.support import refusal
from tests.unit.config_files import SHOP, brief, errors, write

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (MZ\d{3}): (.*?)(?=^##)", f"{PAGE}\n##", re.MULTILINE | re.DOTALL))


def shop(old: str, new: str) -> str:
    """The shop with one mistake."""
    assert old in SHOP
    return SHOP.replace(old, new)


def test_a_folder_without_a_project_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    def problem(folder: Path) -> tuple[str, str]:
        found = refusal(lambda: load_configuration(folder))
        return found.code, found.hint

    code, hint = problem(tmp_path)
    assert code == "MZ010" and "mzplan init" in hint
    write(tmp_path, {"sources/a.sql": ""})
    # Right wherever the command was typed, which need not be the folder that it named.
    above = f"the project may be the folder above: mzplan -C {tmp_path} …"
    assert problem(tmp_path / "sources") == ("MZ010", above)
    for folder in (tmp_path / "nowhere", tmp_path / "mzplan.yaml", Path("a\0b")):
        assert problem(folder)[0] == "MZ010"


def test_excerpts_of_windows_lines_wide_characters_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "sources:\r\n  x: {connection: '日本', topic: t, description: \"é😀\"}\r\n"
    (found,) = errors(tmp_path, {"a.yaml": b"\xef\xbb\xbf" + text.encode()})
    assert brief([found]) == ["a.yaml:2:19 MZ012 Unknown connection"]
    assert found.excerpt == "  x: {connection: '日本', topic: t, description: \"é😀\"}"
    assert found.range is not None and found.range.end_column == 23


def test_every_code_has_a_cause_and_a_fix_in_the_docs() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "mzplan").rglob("*.py"))
    used = {code for text in texts for code in re.findall(r"MZ\d{3}(?!\d)", text)}
    assert used == set(SECTIONS)
    assert list(SECTIONS) == sorted(SECTIONS)
    parts = ("\n**Cause.** ", "\n**Fix.** ")
    assert not [code for code, text in SECTIONS.items() if not all(part in text for part in parts)]
