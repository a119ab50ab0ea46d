"""Connections of connections: a change reaches the queries behind them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode
from mzplan.model.resources import Configuration, Resource
from mzplan.plan import build_plan
from mzplan.render.plan_text import render_plan
from mzplan.schema import dialect, kinds, loading
from tests.unit.small_projects import (
    at,
    change_of,
    commit,
    effects,
    fields,
    kafka,
    names,
    postgres,
    project,
    resource,
    shop,
    sink,
    source,
)


def tunnel(name: str = "t", host: str = "h", **body: Any) -> Resource:
    return resource(f"connection.{name}", "ssh-tunnel", type="ssh-tunnel", host=host, user="u", **body)


def nested(first: Resource, second: Resource | None = None, through: str = "t") -> Configuration:
    """sink → postgres `pg` → tunnel `t` → tunnel `u`."""
    parts = [first, second or tunnel("u"), kafka(), postgres(ssh_tunnel=through), source(), sink()]
    return project(*parts)


STATE = commit(nested(tunnel(ssh_tunnel="u")))


THROUGH_T = "connection.t changed, through connection.pg"
THROUGH_U = "connection.u changed, through connection.pg and connection.t"


@pytest.mark.parametrize(
    ("t", "u", "reason"),
    [("x", "h", THROUGH_T), ("h", "x", THROUGH_U), ("x", "y", f"{THROUGH_T}; {THROUGH_U}")],
)
def test_a_nested_connection_restarts_the_queries_behind_it(t: str, u: str, reason: str) -> None:
    plan = build_plan(nested(tunnel(ssh_tunnel="u", host=t), tunnel("u", host=u)), STATE)
    *causes, restarted = plan.changes
    assert {(cause.action, cause.effect) for cause in causes} == {("update", "restart")}
    assert (str(restarted.address), restarted.action) == ("sink.orders_pg", "restart")
    assert restarted.reason == reason
    assert set(restarted.triggered_by) == {cause.address for cause in causes}
    assert plan.unaffected == 5 - len(causes)


@pytest.mark.parametrize("host", ["h", "x"])
def test_another_nested_connection_restarts_only_if_it_leads_elsewhere(host: str) -> None:
    state = commit(nested(tunnel(), tunnel("u", host=host)))
    plan = build_plan(nested(tunnel(), tunnel("u", host=host), through="u"), state)
    if host == "h":
        assert effects(plan) == {"connection.pg": "in-place"}
        assert fields(plan, "connection.pg") == {"ssh_tunnel": ("t", "u", "in-place")}
    else:
        assert effects(plan) == {"connection.pg": "restart", "sink.orders_pg": "restart"}
        assert names(change_of(plan, "sink.orders_pg").triggered_by) == ["connection.pg"]


def test_a_property_that_cannot_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the kind of a plugin has such a property."""
    folder = tmp_path / "schemas"
    shutil.copytree(dialect.schema_folder(), folder)
    schema = json.loads((folder / "connection.kafka.json").read_text())
    schema["properties"]["options"]["x-change"] = "forbidden"
    (folder / "connection.kafka.json").write_text(json.dumps(schema))
    state = commit(shop())
    monkeypatch.setattr(loading, "schema_folder", lambda: folder)
    caches = (loading.load_schema, kinds.resource_kind)
    for cached in caches:
        cached.cache_clear()
    try:
        plan = build_plan(shop(k=kafka(options={"a": 1})), state)
        text = render_plan(plan)
    finally:
        for cached in caches:
            cached.cache_clear()
    (found,) = plan.diagnostics
    assert (found.code, found.exit_code, found.address) == ("MZ042", ExitCode.REFUSED, at("connection.k"))
    assert effects(plan)["connection.k"] == "forbidden"
    assert "    options.a: added 1  (can't change)\n" in text
