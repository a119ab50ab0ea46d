"""The benchmarks' own arithmetic, and their command line. That they run is seen in tests/faults."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.__main__ import main
from benchmarks.catalogue import BENCHMARKS
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict


def test_sides_run_in_turns_and_rounds_that_warm_up_do_not_count() -> None:
    ticks = itertools.count(1.0)
    taken = alternate({"a": lambda: next(ticks), "b": lambda: next(ticks)}, Rounds(1, 2))
    assert taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_ratio_is_the_median_of_those_of_neighbours() -> None:
    assert ratio([2.0, 40.0, 3.0], [1.0, 20.0, 1.0]) == 2.0
    assert rate(3_000, [1.0, 2.0, 9.0]) == "1,500"


def test_a_table_is_markdown() -> None:
    table = Table(
        ("what", "s", "aim"), [("a", "1.00", verdict("2", True)), ("b", "3.00", verdict("2", False))]
    )
    assert table.markdown().splitlines() == [
        "| what | s | aim |",
        "| --- | ---: | ---: |",
        "| a | 1.00 | 2: met |",
        "| b | 3.00 | 2: **missed** |",
    ]


def test_a_name_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["restart", "restrat"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no benchmark 'restrat'; there are: " in said
    assert all(name in said for name in BENCHMARKS)
