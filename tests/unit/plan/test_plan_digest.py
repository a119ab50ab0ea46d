"""A saved plan: apply carries out the reviewed plan, and refuses an edited one and a stale one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.losses import Loss
from mzplan.model.plan import DriftItem, Plan
from mzplan.model.resources import Configuration, Instance, RunnerSettings
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.canaries import choose_canaries
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan, write_plan
from mzplan.plan.manual_changes import plan_destroy, plan_restart
from mzplan.plan.staleness import ensure_same
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_text import render_plan
from tests.support import refusal
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import (
    at,
    commit,
    commit_plan,
    console,
    kafka,
    observe,
    postgres,
    project,
    shop,
    sink,
    source,
)

STATE = commit(shop())
MOVED, MORE = kafka(brokers=["b:9092"]), {"more": console("more", "orders")}
WANTED = shop(k=MOVED, **MORE)


def refused(call: Callable[[], object]) -> Diagnostic:
    found = refusal(call)
    assert (found.code, found.exit_code) == ("MZ036", ExitCode.STALE)
    return found


def test_the_digest_covers_exactly_what_is_applied() -> None:
    plan = build_plan(WANTED, STATE)
    digest = digest_of_plan(plan)
    assert digest == digest_of_plan(decode_plan(encode_plan(plan)))
    # Seen, not applied: where and when it was planned.
    drift = (DriftItem(address="source.orders", kind="failed-query", detail="x"),)
    for same in ({"serial": 9}, {"drift": drift}, {"unaffected": 7}, {"variables": {"a": 1}}):
        assert digest_of_plan(dataclasses.replace(plan, **same)) == digest  # type: ignore[arg-type]
    for other in (  # and the edits that are refused below
        {"losing": (at("source.orders"),)},
        {"changes": plan.changes[1:]},
        {"canaries": choose_canaries(plan, STATE, 60.0)},
    ):
        assert digest_of_plan(dataclasses.replace(plan, **other)) != digest, other  # type: ignore[arg-type]


def test_expressions_are_shown_in_full() -> None:
    """The end of a long value may be the part that differs."""
    long = f"concat({', '.join(['note'] * 40)}, upper(name)) AS the_end"
    created = build_plan(shop(more=console("more", "orders"), z=sink("z", select=["id", long])), STATE)
    changed = build_plan(shop(orders_pg=sink(select=["id", long], where=f"length({long[:-11]}) > 1")), STATE)
    assert long in render_plan(created) and long in render_plan_markdown(created)
    for text in (render_plan(changed), render_plan_markdown(changed)):
        assert long in text and f"length({long[:-11]}) > 1" in text
    described = build_plan(shop(k=kafka(description="x" * 100)), STATE)
    assert "x" * 40 + "…" + "x" * 39 in render_plan(described)


# --- the file


def test_every_edit_of_a_plan_file_is_noticed() -> None:
    wanted = shop(
        k=kafka(brokers=["b:9092"], description="ünïcode \u202e \x1b[31m"),
        pg=postgres(database="other", password="${env:PG}"),
        orders=source(start_offsets="latest"),
        orders_pg=sink(lifecycle={"prevent_destroy": True}),
        more=sink("more", select=["id", "amount * 2 AS twice"]),
    )
    plan = build_plan(wanted, STATE, observe(STATE, orders={"condition": "failed", "error": "boom"}))
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
        assert "p.plan" in refused(partial(decode_plan, edited, "p.plan")).summary


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(MzplanError):
        write_plan(build_plan(shop(), STATE), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


# --- a saved plan claims only what the files and the state give


def check(plan: Plan) -> None:
    """Plan again, as `apply PLANFILE` does."""
    rotated = {c.address: () for c in plan.changes if c.cause == "secret"}
    made = build_plan(WANTED, STATE, targets=plan.targets, replace=plan.replacing, rotated=rotated)
    if plan.canaries:
        made = dataclasses.replace(made, canaries=choose_canaries(made, STATE, plan.canaries[0].wait))
    ensure_same(decode_plan(encode_plan(plan)), made, STATE)


def edited(address: str, **changes: Any) -> Callable[[Plan], Plan]:
    """Return an edit of one change in a plan. `after`: edits of the change's record."""

    def edit(plan: Plan) -> Plan:
        found = next(c for c in plan.changes if c.address == at(address))
        after = changes.pop("after", None)
        if after is not None:
            assert found.after is not None
            changes["after"] = dataclasses.replace(found.after, **after)
        one = dataclasses.replace(found, **changes)
        return dataclasses.replace(plan, changes=tuple(one if c is found else c for c in plan.changes))

    return edit


def setting(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: dataclasses.replace(plan, **changes)


def test_a_plan_that_is_not_edited_is_accepted() -> None:
    plan = build_plan(WANTED, STATE)
    rotated = {at("source.orders"): ("${env:P}",)}
    for same in (
        plan,
        dataclasses.replace(plan, canaries=choose_canaries(plan, STATE, 60.0)),
        build_plan(WANTED, STATE, rotated=rotated, replace=[at("sink.orders_pg")]),
        build_plan(WANTED, STATE, targets=[at("connection.k")]),
    ):
        check(same)


EVIL = {"local": Instance(name="local", type="cluster")}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (setting(warehouse="s3://elsewhere"), "the warehouse is './warehouse', not 's3://elsewhere'"),
        (setting(instances=EVIL), "the instances differ (local)"),
        (setting(resuming=(at("sink.orders_pg"),)), "other held queries would be released"),
        (setting(settings=RunnerSettings(retain_dropped=5.0)), "the settings of runners"),
        (edited("source.orders", effect="in-place"), "source.orders would restart, with effect restart"),
        (edited("connection.k", fields=()), "connection.k would update, with effect restart"),
        (edited("sink.more", after={"references": {"from": at("source.other")}}), "sink.more would become"),
        (edited("sink.more", after={"id": "0123456789abcdef"}), "sink.more would become something else"),
        (edited("sink.more", after={"override": "paused"}), "sink.more would become something else"),
        (edited("source.orders", after={"body": {**source().body, "topic": "evil"}}), "(topic)"),
        (edited("source.orders", after={"generation": 2}), "source.orders would become something else"),
    ],
)
def test_an_edited_plan_is_refused(edit: Callable[[Plan], Plan], named: str) -> None:
    assert named in refused(lambda: check(edit(build_plan(WANTED, STATE)))).detail


# --- a saved plan is stale if planning again would commit something else


def stale(plan: Plan, configuration: Configuration, state: State = STATE, **options: Any) -> str:
    """Return the difference that the error names."""
    found = refused(lambda: ensure_same(plan, build_plan(configuration, state, **options), state))
    assert "Nothing was changed" in found.detail
    return found.detail


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"k": kafka(brokers=["c:9092"])},
            "connection.k was changed since (brokers[0]); source.orders was changed since",
        ),
        ({"orders": source(description="new")}, "source.orders was changed since (description)"),
        ({"late": source("late")}, "source.late would also restart"),
    ],
)
def test_a_commit_of_a_planned_resource_makes_a_plan_stale(changed: dict[str, Any], named: str) -> None:
    wanted = shop(**{**changed, **MORE, "k": MOVED})
    assert named in stale(build_plan(WANTED, STATE), wanted, commit(shop(**changed), STATE))


def test_a_restart_or_destroy_by_hand_makes_a_plan_stale() -> None:
    plan = build_plan(WANTED, STATE)
    for by_hand, why in ((plan_restart, "paused or restarted by hand"), (plan_destroy, "removed")):
        later = commit_plan(by_hand(STATE, [at("source.orders")]), STATE)
        assert f"source.orders was changed since ({why})" in stale(plan, WANTED, later)


def test_edited_files_make_a_plan_stale() -> None:
    plan = build_plan(WANTED, STATE)
    elsewhere = shop(**MORE, k=kafka(brokers=["c:9092"]))
    assert "connection.k would become something else (brokers[0])" in stale(plan, elsewhere)
    assert "sink.z would also create" in stale(plan, shop(**MORE, k=MOVED, z=console("z", "orders")))
    without = project(MOVED, source(), *MORE.values())
    assert "sink.orders_pg would also delete" in stale(plan, without)
    assert "sink.orders_pg would no longer delete" in stale(build_plan(without, STATE), WANTED)


def test_other_settings_of_runners_make_a_plan_stale() -> None:
    plan = build_plan(project(*WANTED.resources.values(), settings=RunnerSettings(retain_dropped=5.0)), STATE)
    later = project(*WANTED.resources.values(), settings=RunnerSettings(retain_dropped=9.0))
    assert "the settings of runners differ (retain_dropped)" in stale(plan, later)


def test_a_loss_that_was_found_since_makes_a_plan_stale() -> None:
    options = {"replace": [at("source.orders")]}
    replaced = build_plan(shop(), STATE, **options)
    loss = Loss(lost=2, read=9, unit="records", where="in partition 0")
    seen = observe(STATE, orders={"loss": loss})
    assert "source.orders would lose rows" in stale(replaced, shop(), STATE, **options, statuses=seen)


# --- on the command line


def test_apply_refuses_another_digest(tmp_path: Path) -> None:
    folder, saved = write(tmp_path), str(tmp_path / "p.plan")
    digest = mzplan(folder, "plan", "--json", "--out", saved).json()["digest"]
    assert f"Digest: {digest} (" in mzplan(folder, "show", saved).out
    other = "sha256:" + "0" * 64
    for arguments in (["apply", saved], ["apply", "--auto-approve"]):
        done = mzplan(folder, *arguments, "--digest", other)
        assert done.code == 5 and digest in done.err and other in done.err and "MZ036" in done.err
    done = mzplan(folder, "apply", saved, "--digest", "sha256:1")
    assert done.code == 64 and "is not a digest of a plan" in done.err
    assert "Committed serial 1" in mzplan(folder, "apply", saved, "--digest", digest).out
