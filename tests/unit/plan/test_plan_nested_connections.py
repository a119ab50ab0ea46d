"""Connections of connections: a change reaches the queries behind them."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.resources import Configuration, Resource
from mzplan.plan import build_plan
from tests.unit.small_projects import (
    commit,
    effects,
    fields,
    kafka,
    postgres,
    project,
    resource,
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


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("h", {"connection.pg": "in-place"}),
        ("x", {"connection.pg": "restart", "sink.orders_pg": "restart"}),
    ],
)
def test_another_nested_connection_restarts_only_if_it_leads_elsewhere(
    host: str, expected: dict[str, str]
) -> None:
    state = commit(nested(tunnel(), tunnel("u", host=host)))
    plan = build_plan(nested(tunnel(), tunnel("u", host=host), through="u"), state)
    assert effects(plan) == expected
    assert fields(plan, "connection.pg") == {"ssh_tunnel": ("t", "u", expected["connection.pg"])}
