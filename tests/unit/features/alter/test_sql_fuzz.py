"""Any text as a statement gives a diagnostic that points into it and shows no secret."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.features.alter.sql.meaning import meaning_of
from mzplan.features.alter.sql.parser import parse_statements
from mzplan.features.alter.sql.statements import Alter
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.render.diagnostics import render_diagnostics
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import types_of

KEYWORDS = """
    ALTER CONNECTION SOURCE SINK VALIDATE IF EXISTS AS SET DROP RESET WITH ROTATE KEYS TRUE FALSE SECRET
    k kafka BROKERS BROKER SSL KEY PASSWORD PORT HOST
    ( ) [ ] , = ; ' " '' -- 5 -1.5 99999999999999999999
"""
WORDS = [
    *KEYWORDS.split(),
    "\n",
    "'hunter2hunter2'",
    "'${env:X}'",
    "SECRET '${env:X}'",
    "SECRET 'hunter2hunter2'",
    "('a', 'b')",
]
STATEMENTS = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
PREFIXED = st.tuples(st.sampled_from(["", "ALTER CONNECTION k SET ", "ALTER CONNECTION k DROP "]), STATEMENTS)
TEXTS = PREFIXED.map("".join) | st.text(max_size=60)


def check(text: str) -> None:
    try:
        statement = parse_statements(text)[0]
        if not isinstance(statement, Alter):
            return
        for type_ in types_of("connection"):
            kind = resource_kind("connection", type_)
            found = meaning_of(text, statement, Address("connection", "k"), kind)
            assert bool(found.diagnostics) != bool(found.edits)
            shown(text, MzplanError(found.diagnostics) if found.diagnostics else None)
    except MzplanError as problem:
        assert problem.exit_code == ExitCode.USAGE
        shown(text, problem)


def shown(text: str, problem: MzplanError | None) -> None:
    for diagnostic in problem.diagnostics if problem is not None else ():
        where = diagnostic.range
        assert where is not None and where.path == "<statement>"
        assert 1 <= where.line <= text.count("\n") + 1 and diagnostic.excerpt is not None
        rendered = render_diagnostics([diagnostic], False)
        if "HOST" not in text and "BROKER" not in text:
            assert "hunter2" not in rendered


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_any_text_gives_a_diagnostic_that_points_into_it(text: str) -> None:
    check(text)


@pytest.mark.nightly
@settings(max_examples=900, deadline=None)
@given(TEXTS)
def test_more_texts_give_a_diagnostic_that_points_into_them(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text", ["(" * 50_000, "ALTER CONNECTION k SET A " + "'" * 60_001, "x" * 70_000, "\0"]
)
def test_very_long_text_is_refused(text: str) -> None:
    with pytest.raises(MzplanError):
        parse_statements(text)
