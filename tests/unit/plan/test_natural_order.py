"""Every output sorts names by the values of their numbers: s2 before s10."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mzplan.features.ui.follower import View
from mzplan.features.ui.overview import OverviewReader
from mzplan.features.ui.queries_page import queries_page
from mzplan.model.address import KINDS, Address, natural
from mzplan.operations.project import open_project
from mzplan.render.html import element
from tests.unit.cli_runs import apply, mzplan, write

NAMES = st.from_regex(re.compile(r"[a-c][a-c0-2_]{0,5}", re.ASCII), fullmatch=True)
ADDRESSES = st.builds(Address, st.sampled_from(KINDS), NAMES)
NUMBERED = [f"s{number}" for number in range(1, 13)]
SOURCES = "sources:\n" + "".join(
    f"  {name}: {{connection: k, topic: t, format: {{type: json, schema: 'id BIGINT'}}}}\n"
    for name in random.Random(7).sample(NUMBERED, len(NUMBERED))
)


@given(st.lists(ADDRESSES | NAMES, unique_by=str))
def test_numbers_count_and_no_two_names_are_equal(found: list[Address | str]) -> None:
    keys = {natural(one) for one in found}
    assert len(keys) == len(found)
    plain = [one for one in found if not any(c.isdigit() for c in str(one))]
    assert sorted(plain, key=natural) == sorted(plain, key=str)


@given(NAMES, st.integers(0, 10**30), st.integers(0, 10**30), st.sampled_from(["", "_", "x"]))
def test_the_number_decides_where_the_rest_is_equal(name: str, one: int, other: int, rest: str) -> None:
    stem = f"{name}_"
    assert (natural(f"{stem}{one}{rest}") < natural(f"{stem}{other}{rest}")) == (one < other)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve committed sources on a dry instance, declared in random order."""
    made = write(tmp_path_factory.mktemp("numbered"))
    (made / "more.yaml").write_text(SOURCES)
    (made / "first.json").write_text(mzplan(made, "plan", "--json").out)
    apply(made)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "status --json",
        "state list",
        "state list --json",
        "show",
        "graph",
        "graph --format dot",
        "graph --format json",
        "graph --impact connection.k",
        "plan --replace source.s10 --replace source.s9 --target source.s2 --target source.s10",
        "history show 1 --json",
    ],
)
def test_every_list_counts(folder: Path, arguments: str) -> None:
    ran = mzplan(folder, *arguments.split())
    assert ran.code == 0, ran
    shown = [*dict.fromkeys(re.findall(r"\bsource[._](s\d+)\b", ran.out))]
    assert shown == [name for name in NUMBERED if name in shown]


def test_a_plan_counts(folder: Path) -> None:
    shown = re.findall(r'"address": "source\.(s\d+)"', (folder / "first.json").read_text())
    assert shown == NUMBERED


def test_the_page_of_queries_counts(folder: Path) -> None:
    overview = OverviewReader(open_project(str(folder))).read()
    view = cast(View, SimpleNamespace(overview=overview, numbers=defaultdict(tuple)))
    page = str(element("main", queries_page(view)))
    assert re.findall(r'data-query="source\.(s\d+)"', page) == NUMBERED
