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
from tests.unit.cli_runs import apply, mzplan
from tests.unit.config_files import DRY, PROJECT, all_text, brief, errors, load, resource, write
from tests.unit.features.alter.alter_runs import altered, planned
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


@pytest.mark.parametrize(
    ("keys", "more", "topics"),
    [
        ("[a, 5, true]", "", {"t_a": "a", "t_5": "5", "t_true": "true"}),
        ("[]", "", {}),
        ("['${var.one}', b]", "", {"t_eu": "eu", "t_b": "b"}),
        # A number keeps its digits.
        ("{a: 1.10, b: 0x1F}", "name: 's_${each.key}', ", {"s_a": "1.10", "s_b": "0x1F"}),
    ],
)
def test_names_and_texts_have_the_key_and_its_value(
    tmp_path: Path, keys: str, more: str, topics: dict[str, str]
) -> None:
    template = source(f"{more}for_each: {keys}, topic: 'x-${{each.value}}'")
    template["mzplan.yaml"] = PROJECT + "variables: {one: {}}\n"
    made = load(tmp_path, template, variables={"one": "eu"}).resources
    found = {address.name: body.body["topic"] for address, body in made.items() if address.is_query}
    assert found == {name: f"x-{topic}" for name, topic in topics.items()}


def test_values_keep_their_types_where_they_stand_alone(tmp_path: Path) -> None:
    text = f"""
    sources:
      a: {{connection: k, topic: a, {FORMAT}}}
    sinks:
      t:
        for_each:
          x: {{key: [value, n], size: 500, keep: true, label: 0.5, n: {{deep: 7}}}}
        connection: pg
        from: a
        table: "public.${{each.key}}_${{each.value.size}}_${{each.value.keep}}"
        mode: upsert
        key: "${{each.value.key}}"
        select: [value, "1 AS x${{each.value.n.deep}}", "2 AS n"]
        labels: {{number: "${{each.value.label}}", deep: "${{each.value.n.deep}}", text: "${{each.key}}"}}
        lifecycle: {{prevent_destroy: "${{each.value.keep}}"}}
    """
    body = resource(load(tmp_path, files(text)), "sink.t_x").body
    assert body["key"] == ["value", "n"] and body["table"] == "public.x_500_true"
    assert body["labels"] == {"number": 0.5, "deep": 7, "text": "x"}
    assert body["lifecycle"] == {"prevent_destroy": True}
    assert body["select"] == ["value", "1 AS x7", "2 AS n"]


def test_a_connection_written_inside_is_one_for_each(tmp_path: Path) -> None:
    text = f"""
    sources:
      t:
        for_each: [a, b]
        connection: {{type: kafka, brokers: ["${{each.key}}:9092"], description: "*"}}
        topic: t
        {FORMAT}
    """
    made = load(tmp_path, files(text))
    assert resource(made, "connection.source_t_a").body["brokers"] == ["a:9092"]
    assert resource(made, "connection.source_t_b").body["brokers"] == ["b:9092"]
    (wrong,) = errors(tmp_path, files(text.replace("description", "descr")))
    assert (wrong.code, str(wrong.range)) == ("MZ004", "t.yaml:5:62")
    assert str(wrong.address) == "connection.source_t_a"


def test_an_alias_can_be_shared_by_templates_and_plain_resources(tmp_path: Path) -> None:
    text = """
    sources:
      t:
        for_each: &keys {a: {topics: &deep {name: x}}, b: {topics: *deep}}
        name: "${each.key}"
        connection: k
        topic: "${each.value.topics.name}.${each.key}"
        format: &format {type: json, schema: "id BIGINT", }
        labels: &labels {key: "${each.key}"}
      u: {for_each: *keys, connection: k, topic: "u.${each.key}", format: *format, labels: *labels}
      plain: {connection: k, topic: t, format: *format}
    """
    made = load(tmp_path, files(text)).resources
    bodies = {a.name: (r.body["topic"], r.body.get("labels")) for a, r in made.items() if a.is_query}
    a, b = {"key": "a"}, {"key": "b"}
    templates = {"a": ("x.a", a), "b": ("x.b", b), "u_a": ("u.a", a), "u_b": ("u.b", b)}
    assert bodies == {**templates, "plain": ("t", None)}


def test_moved_from_may_have_the_key(tmp_path: Path) -> None:
    committed = commit(load(tmp_path / "a", files(TEMPLATE)))
    renamed = TEMPLATE.replace('name: "${each.key}"', "lifecycle: {moved_from: '${each.key}'}")
    renamed = renamed.replace('from: "${each.key}"', 'from: "per_topic_${each.key}"')
    plan = build_plan(load(tmp_path / "b", files(renamed)), committed)
    moved = {f"source.per_topic_{name}": "move" for name in ("clicks", "orders")}
    assert actions(plan) == {**moved, "sink.log_clicks": "update", "sink.log_orders": "update"}


# --- errors


def test_an_error_of_every_key_is_reported_once(tmp_path: Path) -> None:
    text = f"""
    sources:
      t:
        for_each: [a, b]
        connection: nope
        topic: "${{each.key}}"
        trigger: {{interval: soon}}
        topc: x
        {FORMAT}
    """
    wrong = errors(tmp_path, files(text))
    assert brief(wrong) == ["t.yaml:5:17 MZ012 Unknown connection"]
    assert 'for_each creates it for the key "a", and others the same way.' in wrong[0].detail
    wrong = errors(tmp_path, files(text.replace("nope", "k")))
    assert [f"{one.range} {one.code}" for one in wrong] == ["t.yaml:7:25 MZ005", "t.yaml:8:5 MZ004"]


def test_an_error_of_one_key_names_the_key(tmp_path: Path) -> None:
    wrong = errors(tmp_path, source("for_each: {a: good, b: 'not good', c: bad!}, topic: '${each.value}'"))
    assert {str(d.address): d.detail.rpartition(". ")[2] for d in wrong} == {
        "source.t_b": 'for_each creates it for the key "b".',
        "source.t_c": 'for_each creates it for the key "c".',
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("orders", 't.yaml:3:15 MZ251 for_each needs a list or a mapping'),
        ("[a, {b: c}]", "t.yaml:3:19 MZ251 An item of for_each is a mapping"),
        ("[a, ]\n    name: [x]", "t.yaml:4:5 MZ251 The name of a for_each is not text"),
        ("[a, shop.orders]", 't.yaml:3:19 MZ251 The key "shop.orders" can\'t be in a name'),
        ("{A: x, 'b c': y}\n    name: '${each.key}'", 't.yaml:3:16 MZ251 The key "A" can\'t be in a name'),
        ("[a, b, a]", "t.yaml:3:22 MZ003 source.t_a is declared twice"),
        ("[a, b]\n    name: one", "t.yaml:3:19 MZ003 source.one is declared twice"),
        ("{a: x, b: ['${each.key}']}", "t.yaml:3:27 MZ251 ${each.key} has no meaning here"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_an_error_at_its_place(tmp_path: Path, keys: str, message: str) -> None:
    text = f"sources:\n  t:\n    for_each: {keys}\n    connection: k\n    topic: t\n    {FORMAT}\n"
    assert found(tmp_path, text) == [message]


def test_a_name_twice_names_both_places(tmp_path: Path) -> None:
    text = TEMPLATE.replace("sinks:", f"  orders: {{connection: k, topic: t, {FORMAT}}}\nsinks:")
    (wrong,) = errors(tmp_path, files(text))
    assert wrong.code == "MZ003" and wrong.address == Address("source", "orders")
    assert wrong.detail == 'It is also created by for_each for the key "orders", at t.yaml:2:3.'


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("${each.index}", "${each.index}"),
        ("${each.key", "${each.key"),
        ("${each.value.topic}", 'for the keys "b", "c": the value is not a mapping with the key "topic".'),
        ("${each.value.other}", 'for the key "a": the value has no key "other": it has topic, none.'),
        ("${each.value.none}", 'for the key "a": the value has nothing at "each.value.none".'),
        ("x${each.value}", 'for the key "a": the value is not text, so a reference to it must be'),
    ],
)
def test_a_wrong_reference_is_an_error_that_names_the_keys(tmp_path: Path, topic: str, message: str) -> None:
    template = source(f"for_each: {{a: {{topic: x, none: }}, b: y, c: 5}}, topic: '{topic}'")
    wrong = errors(tmp_path, {**template, "u.yaml": "sinks: {s: {type: console, from: t_a}}\n"})
    assert {(d.code, d.range.line if d.range else 0) for d in wrong} == {("MZ251", 2)}
    assert any(message in f"{d.summary} {d.detail}" for d in wrong), wrong


def test_a_reference_to_a_key_has_no_meaning_outside_for_each(tmp_path: Path) -> None:
    text = """
    sources:
      t: {for_each: [a], connection: k, topic: t, format: &f {type: '${each.key}'}}
      plain: {connection: k, topic: t, format: *f}
      p: {connection: k, topic: '${each.key}', format: {type: text}}
    """
    wrong = [d for d in errors(tmp_path, files(text)) if d.code == "MZ251"]
    assert [str(d.range) for d in wrong] == ["t.yaml:4:36", "t.yaml:5:30"]


def test_a_reference_to_a_key_has_no_meaning_in_settings(tmp_path: Path) -> None:
    for settings in ("defaults: {sources: {topic: '${each.key}'}}\n", "warehouse: '${each.key}'\n"):
        assert [d.code for d in errors(tmp_path, {"mzplan.yaml": PROJECT + settings})] == ["MZ251"]
    assert refusal(lambda: load_project(tmp_path)).code == "MZ251"


def test_values_can_not_make_a_reference_together(tmp_path: Path) -> None:
    template = source('for_each: {a: "{each.key}", b: "{x"}, topic: "$${each.value}"')
    codes = {d.code for d in errors(tmp_path, template)}
    assert codes and codes <= {"MZ251", "MZ017"}


def test_a_variable_without_a_value_is_one_error(tmp_path: Path) -> None:
    text = source("for_each: ['${var.x}'], topic: '${var.y}${each.key}'")
    text["u.yaml"] = "sinks: {s: {type: console, from: t_a}}\n"
    assert [d.summary for d in errors(tmp_path, text)] == ['Unknown variable "x"', 'Unknown variable "y"']


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


# --- commands


def refused(folder: Path, statement: str) -> dict[str, Any]:
    before = {path: path.read_bytes() for path in folder.rglob("*.yaml")}
    state = (folder / "state" / "mzplan.state.json").read_bytes()
    error = altered(folder, statement, code=1).error()
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "state" / "mzplan.state.json").read_bytes() == state
    return error


def test_alter_names_the_edit_that_writes_out_a_connection_inside(tmp_path: Path) -> None:
    """The edit keeps the source, which removing the key alone would delete."""
    inside = "topic: a, format: {type: text}, connection: {type: kafka, brokers: ['%s:9092']}"
    template = "sources:\n  t: {for_each: [%s], " + inside % "${each.key}" + "}\n"
    out = "  t_b: {" + inside % "b" + "}\n"
    folder = write(tmp_path, {"mzplan.yaml": DRY, "t.yaml": template % "a, b"})
    apply(folder)
    hint = refused(folder, "ALTER CONNECTION source_t_b SET BROKERS = ('c:9092')")["hint"]
    assert "declare source.t_b under `sources:`, with this connection inside" in hint
    (folder / "t.yaml").write_text(template % "a" + out)
    assert planned(folder) == {}


def test_alter_refuses_an_edit_that_would_change_other_resources(tmp_path: Path) -> None:
    connections = CONNECTIONS + '  spare: {type: kafka, brokers: ["b:9092"]}\n'
    folder = write(tmp_path, {**files(TEMPLATE), "c.yaml": connections, "mzplan.yaml": DRY})
    apply(folder)
    statement = "ALTER SOURCE orders SET CONNECTION spare"
    error = refused(folder, statement)
    assert (error["code"], error["address"], error["range"]["line"]) == ("MZ075", "source.orders", 2)
    assert "per_topic" in error["detail"]
    file = folder / "t.yaml"
    text = file.read_text()
    file.write_text(text.replace("per_topic:", "orders:"))  # the template has the name of its resource
    assert refused(folder, statement)["code"] == "MZ075"
    file.write_text(file.read_text().replace("topic:", "topc: 1\n    topic:"))
    assert refused(folder, statement)["code"] == "MZ004"

    out = '  orders: {connection: k, topic: shop.orders, format: {type: json, schema: "id BIGINT"}}\nsinks:'
    file.write_text(text.replace("{orders: shop.orders, ", "{").replace("sinks:", out))
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
    altered(folder, statement)
    assert "connection: spare" in file.read_text()
    ran = altered(folder, "ALTER CONNECTION k SET BROKERS = ('c:9092')")
    assert {c["address"] for c in ran.json()["changes"]} == {"connection.k", "source.clicks"}
