"""Commands select many queries by address, glob, connection, label and condition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from mzplan.cli.context import COMPLETE, Invocation
from mzplan.cli.main import cli
from mzplan.model.address import Address, natural
from mzplan.model.observed import Condition
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.operations.selection import Selection, choose
from mzplan.render.status_json import in_order, status_to_json
from tests.unit.cli_runner import following, rejecting
from tests.unit.cli_runs import apply, mzplan, write
from tests.unit.runner.test_status import seen_of
from tests.unit.small_projects import at, commit, console, kafka, postgres, project, resource, sink, source

STATE = commit(
    project(
        resource("connection.jump", "ssh-tunnel", type="ssh-tunnel", host="j", user="u"),
        kafka(),
        resource("connection.hop", "ssh-tunnel", type="ssh-tunnel", host="h", user="u", ssh_tunnel="jump"),
        kafka("k2"),
        postgres(ssh_tunnel="hop"),
        postgres("pg2"),
        source("orders", labels={"team": "shop", "tier": 1}),
        source("clicks", connection="k2", labels={"team": "web"}),
        sink("pg_orders", labels={"team": "shop", "urgent": True}),
        sink("pg_clicks", connection="pg2", **{"from": "clicks"}),
        *(console(f"c{number}", "orders") for number in (1, 2, 10)),
    )
)
QUERIES = sorted((a for a in STATE.resources if a.is_query), key=natural)
SEEN: dict[Address, Condition] = {a: "failed" if a.name[0] == "c" else "running" for a in QUERIES}
SHOP, URGENT = ("team", "shop"), ("urgent", "true")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, " ".join(map(str, QUERIES))),
        ({"named": ("source.*", at("sink.c10"), "*.c1")}, "sink.c1 sink.c10 source.clicks source.orders"),
        ({"named": ("sink.c[12]", at("sink.c1"))}, "sink.c1 sink.c2"),
        ({"connections": ("k",)}, "source.orders"),
        ({"connections": ("k2", "jump")}, "sink.pg_orders source.clicks"),  # `jump` is behind two others
        ({"labels": (SHOP,)}, "sink.pg_orders source.orders"),
        ({"labels": (SHOP, ("tier", "1"))}, "source.orders"),
        ({"labels": (URGENT,)}, "sink.pg_orders"),
        ({"conditions": ("failed", "starting")}, "sink.c1 sink.c2 sink.c10 source.clicks"),
        ({"named": ("sink.*",), "labels": (SHOP,)}, "sink.pg_orders"),
        ({"connections": ("k", "pg"), "conditions": ("running",)}, "sink.pg_orders source.orders"),
        ({"named": ("sink.*",), "labels": (URGENT,), "conditions": ("failed",)}, ""),
    ],
)
def test_names_are_a_union_and_options_narrow_it(fields: dict[str, Any], found: str) -> None:
    assert [str(r.address) for r in choose(Selection(**fields), STATE, lambda: SEEN)] == found.split()


def test_status_is_sorted_by_an_option() -> None:
    def one(name: str, lag: int | None, rows: int | None) -> QueryStatus:
        seen = seen_of(at(f"sink.{name}"), lag=lag, total_rows=rows)
        return QueryStatus(resource=STATE.resources[seen.address], observation=seen)

    queries = (one("c10", 5, None), one("c2", None, 7), one("c1", 50, 7))

    def names(by: str) -> list[str]:
        return [query.resource.address.name for query in in_order(queries, by)]

    assert names("name") == ["c1", "c2", "c10"]
    assert names("lag") == ["c1", "c10", "c2"]
    assert names("rows") == ["c1", "c2", "c10"]
    document = status_to_json(ProjectStatus(serial=1, instances=(), queries=queries), "lag")
    assert [query["address"] for query in document["queries"]] == ["sink.c1", "sink.c10", "sink.c2"]


MORE = """\
sinks:
  c10: {type: console, from: orders, labels: {team: shop}}
  c2: {type: console, from: orders, labels: {team: shop}}
"""


def started(folder: Path, instance: str) -> Path:
    write(folder, instance)
    (folder / "more.yaml").write_text(MORE)
    return folder


@pytest.fixture
def dry(tmp_path: Path) -> Path:
    apply(started(tmp_path, "dry"))
    return tmp_path


def paused(folder: Path) -> set[str]:
    found = json.loads((folder / "state" / "mzplan.state.json").read_text())["resources"]
    return {address for address, one in found.items() if one.get("override") == "paused"}


def serial(folder: Path) -> int:
    return int(mzplan(folder, "status", "--json").json()["serial"])


def test_a_change_of_many_queries_is_one_serial_and_is_followed_if_a_runner_is_alive(tmp_path: Path) -> None:
    folder = started(tmp_path, "cluster")
    with following(folder):
        apply(folder, "--no-live")
        assert mzplan(folder, "status", "--exit-code").code == 0
        before = serial(folder)
        ran = mzplan(folder, "pause", "sink.c*", "source.orders", "--json", "--wait", "30s")
        assert ran.code == 0, ran
        document = ran.json()
        assert serial(folder) == document["serial"] == before + 1
        assert [one["address"] for one in document["changes"]] == ["source.orders", "sink.c2", "sink.c10"]
        assert {one["status"] for one in document["changes"]} == {"applied"}
        assert paused(folder) == {"source.orders", "sink.c2", "sink.c10"}

        ran = mzplan(folder, "pause", "sink.c2", "sink.few")
        assert ran.code == 0 and "Already paused, so unchanged: sink.c2\n" in ran.err
        assert paused(folder) == {"source.orders", "sink.c2", "sink.c10", "sink.few"}
        shown = mzplan(folder, "status", "--condition", "paused", "--label", "team=shop", "--json").json()
        assert [one["address"] for one in shown["queries"]] == ["sink.c2", "sink.c10"]

        assert mzplan(folder, "resume", "--condition", "paused", "--wait", "30s").code == 0
        assert serial(folder) == before + 3 and paused(folder) == set()
        ran = mzplan(folder, "restart", "--connection", "k", "--label", "team=shop")
        assert ran.code == 0 and "No query of the state matches: --connection k --label team=shop" in ran.err
        assert mzplan(folder, "restart", "--connection", "k", "sink.out", "--json").json()["changes"] == []
        assert serial(folder) == before + 3
        assert "pause sink.c* source.orders" in mzplan(folder, "history", "show", str(before + 1)).out

    ran = mzplan(folder, "pause", "sink.c*", "--wait", "0s", "--json")
    assert ran.code == 8 and {one["address"] for one in ran.json()["pending"]} >= {"sink.c2", "sink.c10"}
    assert paused(folder) == {"sink.c2", "sink.c10"}
    for changed, command in (
        (2, ("resume", "sink.c2", "sink.c10")),
        (5, ("restart", "--condition", "stopped")),
    ):
        ran = mzplan(folder, *command, "--no-live", "--wait", "0s", "--json")
        assert ran.code == 8 and len(ran.json()["changes"]) == changed, ran
    shown = mzplan(folder, "status", "--condition", "stopped", "--sort", "lag", "--json").json()["queries"]
    assert len(shown) == 5
    assert mzplan(folder, "status", "--condition", "running").out.startswith("No query of the state matches")
    assert mzplan(folder, "status", "source.*").code == 0
    assert mzplan(folder, "status", "--exit-code", "source.*").code == 8
    assert mzplan(folder, "steps", "*", "--condition", "stopped").code == 0
    ran = mzplan(folder, "logs", "sink.c2", "sink.c10")
    assert ran.code == 1 and "MZ155" in ran.err


def test_logs_of_many_queries(dry: Path) -> None:
    log = dry / ".mzplan" / "local.log"
    log.parent.mkdir(exist_ok=True)
    names = ["sink.c2", "sink.c10", "sink.c20", "source.orders"]
    log.write_text("".join(f"2026-01-31T10:00:00.123Z INFO mzplan.runner: {name} began\n" for name in names))
    for selection, found in ((["sink.c*"], names[:2]), ([], names), (["--condition", "failed"], [])):
        ran = mzplan(dry, "logs", *selection)
        assert ran.code == 0 and [line.split()[3] for line in ran.out.splitlines()] == found


def test_the_shell_completes(dry: Path) -> None:
    for words, incomplete, offered in (
        (("pause",), "sink.c", ["sink.c2", "sink.c10"]),
        (("steps", "sink.c2"), "so", ["source.orders"]),
        (("status", "--connection"), "", ["k"]),
        (("restart", "--label"), "t", ["team=shop"]),
        (("logs", "--condition"), "re", ["rejected"]),
        (("status", "--sort"), "", ["lag", "rows", "name"]),
    ):
        shell = ShellComplete(cli, {"obj": Invocation()}, "mzplan", COMPLETE)
        found = shell.get_completions(["-C", str(dry), *words], incomplete)
        assert [item.value for item in found] == offered


@pytest.mark.parametrize("command", ["restart", "resume"])
def test_a_command_follows_and_judges_only_its_own_queries(tmp_path: Path, command: str) -> None:
    write(tmp_path, "cluster")
    with following(tmp_path) as executor:
        executor.check_result, _ = rejecting("sink.out")
        assert mzplan(tmp_path, "apply", "--auto-approve", "--no-live").code == 8
        if command == "resume":
            assert mzplan(tmp_path, "pause", "sink.few").code == 0
        for changed in (True, command == "restart"):  # the second time it is so already
            ran = mzplan(tmp_path, command, "sink.few")
            assert ran.code == 0 and "sink.out" not in ran.out + ran.err
            assert ("sink.few: applied" in ran.err) and ("No changes" not in ran.out) == changed, ran
            assert "every query has converged" not in ran.out
    # No runner is alive.
    ran = mzplan(tmp_path, "restart", "sink.few", "--wait", "0s", "--json")
    assert ran.code == 8 and [one["address"] for one in ran.json()["pending"]] == ["sink.few"]
    assert len(mzplan(tmp_path, "apply", "--auto-approve", "--wait", "0s", "--json").json()["pending"]) > 1
