"""The layout of interface.md, and what is hard to show in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, SourceRange
from mzplan.render.diagnostics import render_diagnostics


def show(excerpt: str, column: int, end: int, **options: object) -> list[str]:
    """The excerpt and the carets, without the line number."""
    where = SourceRange(path="a.yaml", line=7, column=column, end_line=7, end_column=end)
    diagnostic = Diagnostic(code="MZ004", summary="x", range=where, excerpt=excerpt)
    _, shown, carets = render_diagnostics([diagnostic], False).split("\n")
    assert shown.startswith("    7 |") and carets.startswith("      | ")
    return [shown[8:], carets[8:]]


def test_the_layout() -> None:
    where = SourceRange(path="sources.yaml", line=14, column=17, end_line=14, end_column=26)
    found = [
        Diagnostic(
            code="MZ012",
            summary="Unknown connection",
            detail='source.orders refers to "kafka_prd", which no file declares.',
            hint='did you mean "kafka_prod" (connections.yaml:3:3)?',
            range=where,
            excerpt="    connection: kafka_prd",
            address=Address("source", "orders"),
        ),
        Diagnostic(severity="warning", code="MZ050", summary="Unreachable", detail="one\ntwo", hint="wait."),
        Diagnostic(severity="notice", code="MZ007", summary="more"),
    ]
    assert render_diagnostics(found, False) == (
        "sources.yaml:14:17: error[MZ012]: Unknown connection\n"
        "   14 |     connection: kafka_prd\n"
        "      |                 ^^^^^^^^^\n"
        '  source.orders refers to "kafka_prd", which no file declares.\n'
        '  Fix: did you mean "kafka_prod" (connections.yaml:3:3)?\n'
        "\n"
        "warning[MZ050]: Unreachable\n"
        "  one\n"
        "  two\n"
        "  Fix: wait.\n"
        "\n"
        "notice[MZ007]: more"
    )


def test_colours_only_when_asked_for() -> None:
    found = [Diagnostic(code="MZ001", summary="x", hint="y")]
    assert "\x1b[" in render_diagnostics(found, True)
    assert "\x1b[" not in render_diagnostics(found, False)


def test_paths_can_be_opened_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = SourceRange(path="a/b.yaml", line=1, column=1, end_line=1, end_column=2)
    found = [Diagnostic(code="MZ001", summary="x", range=where)]
    (tmp_path / "p/q/r").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "p")

    def shown(folder: str) -> str:
        return render_diagnostics(found, False, folder).split(":")[0]

    assert shown(".") == shown(str(tmp_path / "p")) == shown("") == "a/b.yaml"
    assert shown("q") == "q/a/b.yaml" and shown("..") == "../a/b.yaml"
    monkeypatch.chdir(tmp_path / "p/q/r")
    assert shown("../..") == str(tmp_path / "p/a/b.yaml")


def test_tabs_wide_and_invisible_characters() -> None:
    assert show("\tkey:\tx", 7, 8) == ["    key:    x", "            ^"]
    assert show("a: 日本 x", 4, 6) == ["a: 日本 x", "   ^^^^"]
    assert show("a: 日本 x", 7, 8) == ["a: 日本 x", "        ^"]
    assert show("e\u0301: x", 5, 6) == ["e\u0301: x", "   ^"]
    assert show("a\x1bb: x", 6, 7) == ["a\\x1bb: x", "        ^"]
    assert show("a\u202eb: x", 6, 7) == ["a\\u202eb: x", "          ^"]


def test_places_at_and_past_the_end() -> None:
    assert show("abc", 4, 5) == ["abc", "   ^"]
    assert show("", 1, 2) == ["", "^"]
    assert show("abc", 90, 95) == ["abc", "   ^"]
    assert show("abc", 2, 2) == ["abc", " ^"]


def test_a_range_over_several_lines_shows_its_first_line() -> None:
    where = SourceRange(path="a.yaml", line=1, column=6, end_line=4, end_column=2)
    found = Diagnostic(code="MZ018", summary="x", range=where, excerpt="key: |text  ")
    assert render_diagnostics([found], False).split("\n")[2] == "      |      ^^^^^"


def test_long_lines_are_cut_around_the_carets() -> None:
    line = "x" * 500 + "HERE" + "y" * 1_000_000
    shown, carets = show(line, 501, 505)
    assert len(shown) <= 102 and shown.startswith("…") and shown.endswith("…")
    at = carets.index("^")
    assert shown[at : at + 4] == "HERE" and carets.strip() == "^^^^"
    shown, carets = show("HERE" + "y" * 500, 1, 5)
    assert shown.startswith("HERE") and carets == "^^^^"
    shown, carets = show("z" * 500, 1, 501)
    assert len(carets) <= 102


def test_no_excerpt_no_lines() -> None:
    where = SourceRange(path="a.yaml", line=1, column=1, end_line=1, end_column=2)
    assert render_diagnostics([Diagnostic(code="MZ001", summary="x", range=where)], False) == (
        "a.yaml:1:1: error[MZ001]: x"
    )
    assert render_diagnostics([], False) == ""
