"""The plan file: reading returns the written plan, and rejects everything else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, encode_plan, write_plan
from tests.support import refusal
from tests.unit.small_projects import kafka, observe, postgres, shop, sink, source


def every_kind_of_change(state: State) -> Plan:
    wanted = shop(
        k=kafka(brokers=["b:9092"], description="ünïcode \u202e \x1b[31m"),
        pg=postgres(database="other", password="${env:PG}"),
        orders=source(start_offsets="latest"),
        orders_pg=sink(lifecycle={"prevent_destroy": True}),
        more=sink("more", select=["id", "amount * 2 AS twice"]),
    )
    return build_plan(wanted, state, observe(state, orders={"condition": "failed", "error": "boom"}))


def test_every_edit_of_a_plan_file_is_noticed(state: State) -> None:
    plan = every_kind_of_change(state)
    data = encode_plan(plan)
    read = decode_plan(data)
    assert (read, [d.exit_code for d in read.diagnostics]) == (plan, [d.exit_code for d in plan.diagnostics])
    document = json.loads(data)
    document["plan"]["changes"][0]["after"]["body"]["brokers"] = ["evil:9092"]
    for edited in (
        json.dumps(document).encode(),
        data[:-20],
        data[: len(data) // 2],
        data.replace(b'"serial": 1', b'"serial": 2'),
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        json.dumps({**json.loads(data), "mzplan_plan": 2}).encode(),
        b"[" * 100_000,
    ):
        found = refusal(partial(decode_plan, edited, "p.plan"))
        assert (found.code, found.exit_code) == ("MZ036", ExitCode.STALE)
        assert "p.plan" in found.summary


def test_a_write_that_fails_leaves_nothing_behind(state: State, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(MzplanError):
        write_plan(build_plan(shop(), state), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
