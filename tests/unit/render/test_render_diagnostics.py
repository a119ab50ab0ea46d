"""The layout of interface.md, and what is hard to show in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, SourceRange
from mzplan.render.diagnostics import render_diagnostics


def found_at(
    column: int, end: int, excerpt: str | None = None, line: int = 7, end_line: int = 7
) -> Diagnostic:
    where = SourceRange(path="a/b.yaml", line=line, column=column, end_line=end_line, end_column=end)
    return Diagnostic(code="MZ004", summary="x", range=where, excerpt=excerpt)


def show(excerpt: str, column: int, end: int, **more: int) -> list[str]:
    """The excerpt and the carets, without the line number."""
    shown = render_diagnostics([found_at(column, end, excerpt, **more)], False)
    _, line, carets = shown.split("\n")
    assert line.startswith("    7 |") and carets.startswith("      | ")
    return [line[8:], carets[8:]]


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
    assert "\x1b[" in render_diagnostics(found, True)


def test_paths_can_be_opened_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p/q/r").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "p")

    def shown(folder: str) -> str:
        return render_diagnostics([found_at(1, 2)], False, folder).split(":")[0]

    assert shown(".") == shown(str(tmp_path / "p")) == shown("") == "a/b.yaml"
    assert shown("q") == "q/a/b.yaml" and shown("..") == "../a/b.yaml"
    monkeypatch.chdir(tmp_path / "p/q/r")
    assert shown("../..") == str(tmp_path / "p/a/b.yaml")


@pytest.mark.parametrize(
    ("excerpt", "column", "end", "line", "carets"),
    [
        ("\tkey:\tx", 7, 8, "    key:    x", "            ^"),
        ("a: 日本 x", 4, 6, "a: 日本 x", "   ^^^^"),
        ("a: 日本 x", 7, 8, "a: 日本 x", "        ^"),
        ("e\u0301: x", 5, 6, "e\u0301: x", "   ^"),
        ("a\x1bb: x", 6, 7, "a\\x1bb: x", "        ^"),
        ("a\u202eb: x", 6, 7, "a\\u202eb: x", "          ^"),
        ("", 1, 2, "", "^"),
        ("abc", 90, 95, "abc", "   ^"),
        ("abc", 2, 2, "abc", " ^"),
    ],
)
def test_carets_are_below_their_characters(
    excerpt: str, column: int, end: int, line: str, carets: str
) -> None:
    assert show(excerpt, column, end) == [line, carets]


def test_long_excerpts_are_cut_around_the_carets() -> None:
    assert show("key: |text  ", 6, 2, end_line=9)[1] == "     ^^^^^"
    line = "x" * 500 + "HERE" + "y" * 1_000_000
    shown, carets = show(line, 501, 505)
    assert len(shown) <= 102 and shown.startswith("…") and shown.endswith("…")
    at = carets.index("^")
    assert shown[at : at + 4] == "HERE" and carets.strip() == "^^^^"
    shown, carets = show("HERE" + "y" * 500, 1, 5)
    assert shown.startswith("HERE") and carets == "^^^^"
    shown, carets = show("z" * 500, 1, 501)
    assert len(carets) <= 102
