"""The planner depends on no type: these tests use their own kinds, with other properties.

Connections of connections, properties that can't change, and effects by kind of edit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode
from mzplan.model.resources import Configuration, Resource
from mzplan.plan import build_plan
from mzplan.render.plan_text import render_plan
from mzplan.schema import dialect, kinds, loading
from tests.unit.small_projects import (
    actions,
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
    sink,
    source,
)


def told(change: Any, **schema: Any) -> dict[str, Any]:
    """Return a property's schema with every annotation that a schema requires."""
    return {"description": "One.", "x-change": change, "x-sensitive": False, "x-sql": None, **schema}


TUNNEL = {
    "type": "object",
    "allOf": [{"$ref": "common.json"}],
    "properties": {
        "type": told("replace", const="tunnel"),
        "host": told("restart", type="string"),
        "zone": told("replace", type="string"),
        "region": told("forbidden", type="string"),
        "secret": told("restart", type="string", **{"x-sensitive": True}),
        "via": told("restart", type="string", **{"x-reference": "connection"}),
        "home": told("replace", type="string", **{"x-reference": "connection"}),
        "checks": told("in-place", type="object", properties={"n": told("restart")}),
        "keys": told({"added": "in-place", "removed": "restart", "changed": "replace"}, type="object"),
    },
}


@pytest.fixture(autouse=True)
def extra_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "schemas"
    shutil.copytree(dialect.schema_folder(), folder)
    (folder / "connection.tunnel.json").write_text(json.dumps(TUNNEL))
    path = folder / "connection.kafka.json"
    schema = json.loads(path.read_text())
    schema["properties"]["tunnel"] = told("restart", type="string", **{"x-reference": "connection"})
    path.write_text(json.dumps(schema))
    monkeypatch.setattr(loading, "schema_folder", lambda: folder)
    caches = (loading.load_schema, loading.schema_names, loading.types_of, kinds.resource_kind)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def tunnel(name: str = "t", **body: Any) -> Resource:
    return resource(f"connection.{name}", "tunnel", type="tunnel", **{"host": "h", **body})


def nested(first: Resource, second: Resource | None = None, k: str = "t") -> Configuration:
    """sink ← source ← kafka `k` ← tunnel `t` ← tunnel `u`."""
    parts = [first, second or tunnel("u"), kafka(tunnel=k), postgres(), source(), sink()]
    return project(*parts)


@pytest.mark.parametrize(("t", "u"), [("x", "h"), ("h", "x")])
def test_a_nested_connection_restarts_the_queries_behind_it(t: str, u: str) -> None:
    changed = (tunnel(via="u", host=t), tunnel("u", host=u))
    state = commit(nested(tunnel(via="u")))
    plan = build_plan(nested(*changed), state)
    cause = plan.changes[0].address
    assert actions(plan) == {str(cause): "update", "source.orders": "restart"}
    assert plan.changes[0].effect == "restart"
    assert names(change_of(plan, "source.orders").triggered_by) == [str(cause)]
    assert names(plan.downstream) == ["sink.orders_pg"]
    assert plan.unaffected == 4 - 1  # the other tunnel, kafka and postgres


def test_a_replace_of_a_nested_connection_reaches_its_queries() -> None:
    plan = build_plan(nested(tunnel(via="u"), tunnel("u", zone="b")), commit(nested(tunnel(via="u"))))
    assert actions(plan) == {
        "connection.u": "update",
        "source.orders": "replace",
        "sink.orders_pg": "replace",
    }
    assert effects(plan)["connection.u"] == "replace"


def test_two_nested_changes_are_both_causes() -> None:
    plan = build_plan(
        nested(tunnel(via="u", host="x"), tunnel("u", host="y")), commit(nested(tunnel(via="u")))
    )
    restarted = change_of(plan, "source.orders")
    assert names(restarted.triggered_by) == ["connection.t", "connection.u"]
    assert restarted.reason == (
        "connection.t changed, through connection.k; "
        "connection.u changed, through connection.k and connection.t"
    )


@pytest.mark.parametrize("host", ["h", "x"])
def test_another_nested_connection_restarts_only_if_it_leads_elsewhere(host: str) -> None:
    state = commit(nested(tunnel(), tunnel("u", host=host)))
    plan = build_plan(nested(tunnel(), tunnel("u", host=host), k="u"), state)
    if host == "h":
        assert effects(plan) == {"connection.k": "in-place"}
        assert fields(plan, "connection.k") == {"tunnel": ("t", "u", "in-place")}
    else:
        assert effects(plan) == {"connection.k": "restart", "source.orders": "restart"}
        assert names(change_of(plan, "source.orders").triggered_by) == ["connection.k"]


def test_a_property_that_can_not_change_is_refused() -> None:
    state = commit(nested(tunnel(region="a")))
    plan = build_plan(nested(tunnel(region="b")), state)
    (found,) = plan.diagnostics
    assert (found.code, found.exit_code, found.address) == ("MZ042", ExitCode.REFUSED, at("connection.t"))
    assert effects(plan)["connection.t"] == "forbidden"
    assert "    region: a → b  (can't change)\n" in render_plan(plan)


def test_an_effect_may_depend_on_the_kind_of_edit() -> None:
    state = commit(nested(tunnel(keys={"a": 1, "b": 2})))
    plan = build_plan(nested(tunnel(keys={"a": 1, "b": 3, "c": 4})), state)
    assert fields(plan, "connection.t") == {"keys.b": (2, 3, "replace"), "keys.c": (None, 4, "in-place")}
    plan = build_plan(nested(tunnel(keys={"a": 1})), state)
    assert fields(plan, "connection.t") == {"keys.b": (2, None, "restart")}
    assert actions(plan)["source.orders"] == "restart"


def test_a_reference_that_replaces_does_so_even_to_an_equal_connection() -> None:
    state = commit(nested(tunnel(home="u"), tunnel("u")))
    twin = tunnel("v")
    plan = build_plan(project(*nested(tunnel(home="v"), tunnel("u")).resources.values(), twin), state)
    assert fields(plan, "connection.t") == {"home": ("u", "v", "replace")}


def test_a_repointed_query_has_the_effect_of_its_new_nested_connection() -> None:
    parts = [kafka(tunnel="t"), kafka("k2", tunnel="t"), postgres(), sink()]
    state = commit(project(tunnel(), source(), *parts))
    plan = build_plan(project(tunnel(zone="b"), source(connection="k2"), *parts), state)
    assert fields(plan, "source.orders") == {"connection": ("k", "k2", "replace")}
    assert actions(plan)["source.orders"] == "replace"


def test_an_equal_digest_restarts_nothing() -> None:
    """A contradictory schema: a property changes in place, and a part of it restarts the query."""
    state = commit(nested(tunnel(checks={"n": 1})))
    plan = build_plan(nested(tunnel(checks={"n": 2}), None), state)
    assert actions(plan) == {"connection.t": "update"}
