"""`for_each`: the resources of a template, and errors with their line and their key."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from mzplan.config import expansion, load_project, read_files
from mzplan.model.address import Address
from mzplan.plan import build_plan
from tests.support import refusal
from tests.unit.config_files import PROJECT, all_text, brief, errors, load, resource, write
from tests.unit.small_projects import actions, commit

CONNECTIONS = """\
connections:
  k: {type: kafka, brokers: ["b:9092"]}
  pg: {type: postgres, host: db, database: s, user: u, password: "${env:P}"}
"""
TEMPLATE = """\
sources:
  per_topic:
    for_each: {orders: shop.orders, clicks: web.clicks}
    name: "${each.key}"
    connection: k
    topic: "${each.value}"
    format: {type: json, schema: "id BIGINT"}
sinks:
  log:
    for_each: [orders, clicks]
    type: console
    from: "${each.key}"
"""
OUT = """\
sources:
  orders: {connection: k, topic: shop.orders, format: {type: json, schema: "id BIGINT"}}
  clicks: {connection: k, topic: web.clicks, format: {type: json, schema: "id BIGINT"}}
sinks:
  log_orders: {type: console, from: orders}
  log_clicks: {type: console, from: clicks}
"""
FORMAT = "format: {type: text}"


def files(text: str) -> dict[str, str | bytes]:
    return {"c.yaml": CONNECTIONS, "t.yaml": dedent(text)}


def found(folder: Path, text: str, **options: Any) -> list[str]:
    return brief(errors(folder, files(text), **options))


# --- resources


def test_a_template_declares_the_same_as_its_resources_written_out(tmp_path: Path) -> None:
    made = load(tmp_path / "a", files(TEMPLATE)).resources
    written = load(tmp_path / "b", files(OUT)).resources
    assert made.keys() == written.keys()
    assert [r.body for r in made.values()] == [r.body for r in written.values()]
    assert [r.references for r in made.values()] == [r.references for r in written.values()]
    committed = commit(load(tmp_path / "b"))
    assert build_plan(load(tmp_path / "a"), committed).is_empty
    # Another key only adds its resource, in any order.
    more = TEMPLATE.replace("{orders:", "{leads: web.leads, orders:")
    assert actions(build_plan(load(tmp_path / "a", files(more)), committed)) == {"source.leads": "create"}


def source(rest: str) -> dict[str, str | bytes]:
    """The files of a project with one template, `t`, of sources."""
    return files(f"sources:\n  t: {{{rest}, connection: k, {FORMAT}}}\n")


def test_moved_from_may_have_the_key(tmp_path: Path) -> None:
    committed = commit(load(tmp_path / "a", files(TEMPLATE)))
    renamed = TEMPLATE.replace('name: "${each.key}"', "lifecycle: {moved_from: '${each.key}'}")
    renamed = renamed.replace('from: "${each.key}"', 'from: "per_topic_${each.key}"')
    plan = build_plan(load(tmp_path / "b", files(renamed)), committed)
    moved = {f"source.per_topic_{name}": "move" for name in ("clicks", "orders")}
    assert actions(plan) == {**moved, "sink.log_clicks": "update", "sink.log_orders": "update"}


# --- errors


def test_a_reference_to_a_key_has_no_meaning_in_settings(tmp_path: Path) -> None:
    for settings in ("defaults: {sources: {topic: '${each.key}'}}\n", "warehouse: '${each.key}'\n"):
        assert [d.code for d in errors(tmp_path, {"mzplan.yaml": PROJECT + settings})] == ["MZ251"]
    assert refusal(lambda: load_project(tmp_path)).code == "MZ251"


def test_the_resources_of_a_broken_template_are_unknown(tmp_path: Path) -> None:
    text = TEMPLATE.replace("[orders, clicks]", "5").replace("clicks: web.clicks", "clicks: 'a b'")
    read = read_files(write(tmp_path, files(text)))
    assert not read.is_whole
    assert [str(a) for a in read.mistaken] == ["source.clicks"]
    assert Address("source", "orders") in read.resources


# --- secrets


SECRET = """
sources:
  a: {{connection: k, topic: a, format: {{type: text}}}}
sinks:
  s:
    for_each: {{x: {{pw: "{value}"}}}}
    connection: {{type: postgres, host: db, database: s, user: u, password: "{password}"}}
    from: a
    table: t
    description: "{description}"
"""


def test_a_secret_reference_may_stand_where_a_secret_may_and_nowhere_else(tmp_path: Path) -> None:
    inside = "${each.value.pw}"
    for value, written in (("${env:PX}", inside), ("PX", f"${{env:{inside}}}")):
        made = load(tmp_path, files(SECRET.format(value=value, password=written, description="x")))
        assert resource(made, "connection.sink_s_x").body["password"] == "${env:PX}"
    text = SECRET.format(value="${env:PX}", password=inside, description=inside)
    assert found(tmp_path, text) == ['t.yaml:10:18 MZ102 A secret reference can\'t stand in "description"']
    text = SECRET.format(value="hunter2!", password=inside, description="x").replace("from: a", "form: a")
    wrong = errors(tmp_path, files(text))
    assert "MZ016" in {d.code for d in wrong} and "hunter2!" not in all_text(wrong)


# --- limits


QUOTED = "'${each.value}', "


@pytest.mark.parametrize(
    ("limit", "value", "template"),
    [
        ("MAX_MADE", 5, "for_each: [a, b, c, d, e, f], topic: '${each.key}'"),
        ("MAX_FILLED", 100_000, f"for_each: {{a: {'x' * 3000}}}, topic: '{'${each.value}' * 50}'"),
        ("MAX_NODES", 1000, f"for_each: {{a: [{'x, ' * 100}]}}, labels: [{QUOTED * 20}]"),
    ],
)
def test_resources_texts_and_values_of_a_template_are_limited(
    tmp_path: Path, limit: str, value: int, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, limit, value)
    (found,) = brief(errors(tmp_path, source(template)))
    assert found == "t.yaml:2:7 MZ007 for_each makes the project too large"
