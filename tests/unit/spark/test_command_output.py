"""A command prints its result to its own stdout, also where an earlier command left its session open."""

from __future__ import annotations

import io
import sys

import pytest

from mzplan.spark.process.command_session import _Output


def test_a_session_that_was_left_open_takes_no_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    output, errors, first, second = _Output(), io.StringIO(), io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "stdout", first)
    output.redirect()  # and never restored
    monkeypatch.setattr(sys, "stdout", second)
    output.redirect()
    output.redirect()  # the same command opens its session twice
    print("of the user")
    output.restore()
    print("the result")
    assert (errors.getvalue(), second.getvalue(), first.getvalue()) == ("of the user\n", "the result\n", "")
