"""What is reviewed is what is applied: a plan's digest, and what a saved plan may not claim."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import DriftItem, Plan
from mzplan.model.resources import Instance
from mzplan.plan import build_plan, ensure_declared, ensure_fresh
from mzplan.plan.canaries import choose_canaries
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.freshness import ensure_as_recomputed
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import LOCAL, at, commit, console, kafka, shop, sink, source

STATE = commit(shop())
WANTED = shop(k=kafka(brokers=["b:9092"]), more=console("more", "orders"))


def test_the_digest_is_of_what_is_applied() -> None:
    plan = build_plan(WANTED, STATE)
    digest = digest_of_plan(plan)
    assert digest == digest_of_plan(decode_plan(encode_plan(plan)))
    # Seen, not applied: where and when it was planned.
    drift = (DriftItem(address="source.orders", kind="failed-query", detail="x"),)
    for same in ({"serial": 9}, {"drift": drift}, {"unaffected": 7}, {"variables": {"a": 1}}):
        assert digest_of_plan(dataclasses.replace(plan, **same)) == digest  # type: ignore[arg-type]
    first = plan.changes[0]
    for other in (
        {"warehouse": "s3://elsewhere"},
        {"instances": {"local": Instance(name="local", type="cluster")}},
        {"changes": plan.changes[1:]},
        {"changes": (dataclasses.replace(first, fields=()), *plan.changes[1:])},
        {"goes_on": (at("source.orders"),)},
        {"canaries": choose_canaries(plan, STATE, 60.0)},
    ):
        assert digest_of_plan(dataclasses.replace(plan, **other)) != digest, other  # type: ignore[arg-type]


def test_each_form_of_a_plan_shows_its_digest_and_its_places() -> None:
    plan = build_plan(WANTED, STATE)
    digest = digest_of_plan(plan)
    assert f"Digest: {digest}, with warehouse ./warehouse, instance local (embedded)\n" in render_plan(plan)
    markdown = render_plan_markdown(plan)
    assert f"\nDigest: `{digest}`, with warehouse `./warehouse`, instances: `local` (embedded).\n" in markdown
    assert plan_to_json(plan)["digest"] == digest


def test_no_expression_is_cut() -> None:
    """Its end may be what matters."""
    long = f"concat({', '.join(['note'] * 40)}, upper(name)) AS the_end"
    created = build_plan(shop(more=console("more", "orders"), z=sink("z", select=["id", long])), STATE)
    changed = build_plan(shop(orders_pg=sink(select=["id", long], where=f"length({long[:-11]}) > 1")), STATE)
    assert long in render_plan(created) and long in render_plan_markdown(created)
    for text in (render_plan(changed), render_plan_markdown(changed)):
        assert long in text and f"length({long[:-11]}) > 1" in text
    described = build_plan(shop(k=kafka(description="x" * 100)), STATE)
    assert "x" * 40 + "…" + "x" * 39 in render_plan(described)


# --- a saved plan claims only what the files and the state give


def check(plan: Plan) -> None:
    fresh = ensure_fresh(decode_plan(encode_plan(plan)), STATE)
    ensure_declared(fresh, WANTED)
    ensure_as_recomputed(fresh, WANTED, STATE)


def edited(address: str, **changes: Any) -> Callable[[Plan], Plan]:
    """An edit of one change; `after` is of its record."""

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


@pytest.mark.parametrize("canary", [None, 60.0])
def test_an_honest_plan_is_what_it_claims(canary: float | None) -> None:
    plan = build_plan(WANTED, STATE)
    check(
        plan if canary is None else dataclasses.replace(plan, canaries=choose_canaries(plan, STATE, canary))
    )
    rotated = {at("source.orders"): ("${env:P}",)}
    check(build_plan(WANTED, STATE, rotated=rotated, replace=[at("sink.orders_pg")]))
    check(build_plan(WANTED, STATE, targets=[at("connection.k")]))


EVIL = {"local": Instance(name="local", type="cluster")}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (setting(warehouse="s3://elsewhere"), "the warehouse is './warehouse', not 's3://elsewhere'"),
        (setting(instances=EVIL), "the instances are others (local)"),
        (setting(instances={**LOCAL, "x": Instance(name="x", type="dry")}), "the instances are others (x)"),
        (setting(goes_on=(at("sink.orders_pg"),)), "sink.orders_pg waits for no canary"),
        (edited("source.orders", effect="in-place"), "source.orders would restart otherwise (effect)"),
        (edited("connection.k", fields=()), "connection.k would update otherwise (fields)"),
        (
            edited("sink.more", after={"references": {"from": at("source.other")}}),
            "sink.more",
        ),
        (edited("sink.more", after={"id": "0123456789abcdef"}), "sink.more would create otherwise (after)"),
        (edited("sink.more", after={"override": "paused"}), "sink.more would create otherwise (after)"),
        (edited("source.orders", after={"override": "paused"}), "source.orders"),
        (edited("source.orders", after={"generation": 2}), "source.orders"),
    ],
)
def test_a_plan_that_claims_something_else_is_refused(edit: Callable[[Plan], Plan], named: str) -> None:
    with pytest.raises(MzplanError) as caught:
        check(edit(build_plan(WANTED, STATE)))
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == ("MZ036", ExitCode.STALE)
    assert named in found.detail


def test_the_errors_of_a_plan_can_not_be_edited_out() -> None:
    wanted = shop(orders_pg=sink(lifecycle={"prevent_destroy": True}))
    state = commit(wanted)
    without = dataclasses.replace(
        wanted, resources={a: r for a, r in wanted.resources.items() if a.kind != "sink"}
    )
    plan = build_plan(without, state)
    assert [d.code for d in plan.diagnostics] == ["MZ041"]
    with pytest.raises(MzplanError, match="MZ041"):
        ensure_as_recomputed(dataclasses.replace(plan, diagnostics=()), without, state)


def test_the_plan_of_other_changes_that_are_only_declared_is_not_taken_along() -> None:
    """The files may have more by now: that is for another plan."""
    plan = build_plan(WANTED, STATE)
    more = dataclasses.replace(WANTED, resources={**WANTED.resources, at("source.x"): source("x")})
    ensure_as_recomputed(plan, more, STATE)


# --- on the command line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def digest_in(text: str) -> str:
    return str(json.loads(text)["digest"])


def test_apply_takes_no_other_digest(folder: Path) -> None:
    saved = str(folder / "p.plan")
    digest = digest_in(mzplan(folder, "plan", "--json", "--out", saved).out)
    assert f"Digest: {digest}, with " in mzplan(folder, "show", saved).out
    other = "sha256:" + "0" * 64
    for arguments in (["apply", saved], ["apply", "--auto-approve"]):
        done = mzplan(folder, *arguments, "--digest", other)
        assert done.code == 5 and digest in done.err and other in done.err and "MZ036" in done.err
    done = mzplan(folder, "apply", saved, "--digest", "sha256:1")
    assert done.code == 64 and "is not a digest of a plan" in done.err
    assert "Committed serial 1" in mzplan(folder, "apply", saved, "--digest", digest).out


def test_apply_without_a_file_takes_the_digest_of_the_review(folder: Path) -> None:
    digest = digest_in(mzplan(folder, "plan", "--json").out)
    assert mzplan(folder, "apply", "--auto-approve", "--digest", digest).code == 0


def test_two_machines_have_one_digest(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write(other)
    first, second = (digest_in(mzplan(f, "plan", "--json").out) for f in (folder, other))
    assert first == second


def test_a_plan_edited_to_another_warehouse_and_instance_is_refused(folder: Path) -> None:
    """With a checksum that fits: it is not a secret."""
    saved = folder / "p.plan"
    mzplan(folder, "plan", "--out", str(saved))
    plan = decode_plan(saved.read_bytes())
    instances = {name: Instance(name=name, type="embedded") for name in plan.instances}
    for edit in (setting(warehouse="/elsewhere"), setting(instances=instances)):
        saved.write_bytes(encode_plan(edit(plan)))
        done = mzplan(folder, "apply", str(saved))
        assert done.code == 5 and "It says something else than the files and the state give" in done.err
