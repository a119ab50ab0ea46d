"""`defaults:`, of a project and of a connection: what gets them; written out or not, they mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from tests.unit.cli_runs import apply, mzplan
from tests.unit.config_files import DRY, PROJECT, brief, errors, load, resource, write
from tests.unit.features.alter.alter_runs import altered
from tests.unit.small_projects import actions, commit

SHOP = """\
connections:
  k: {type: kafka, brokers: ["b:9092"]%s}
  pg: {type: postgres, host: localhost, database: s, user: u, password: "${env:P}"%s}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}%s}
sinks:
  table: {connection: pg, from: orders, table: t%s}
  shown: {type: console, from: orders%s}
"""


def files(defaults: str, k: str = "", pg: str = "", orders: str = "", table: str = "") -> dict[str, Any]:
    written = [f", {text}" if text else "" for text in (k, pg, orders, table, "")]
    settings = f"defaults: {defaults}\n" if defaults else ""
    return {"mzplan.yaml": PROJECT + settings, "shop.yaml": SHOP % tuple(written)}


def shop(folder: Path, defaults: str = "", **written: str) -> Configuration:
    return load(folder, files(defaults, **written))


def body(configuration: Configuration, address: str) -> Any:
    return resource(configuration, address).body


def found(folder: Path, defaults: str, **written: str) -> list[str]:
    return brief(errors(folder, files(defaults, **written)))


def test_mappings_are_merged_lists_replaced_and_a_connection_wins_over_the_project(tmp_path: Path) -> None:
    made = shop(
        tmp_path,
        "{sources: {trigger: {interval: 5s}, labels: {a: 1}}, sinks: {description: all, "
        "labels: {a: 1, b: 2}, lifecycle: {prevent_destroy: true}, select: [id]}}",
        k="defaults: {sources: {trigger: {interval: 6s}, labels: {b: 2}}}",
        pg="defaults: {sinks: {description: mine, mode: upsert, key: [id]}}",
        table="lifecycle: {moved_from: old}, labels: {b: 3}, select: [id, '1 AS n']",
    )
    orders, table, shown = (body(made, name) for name in ("source.orders", "sink.table", "sink.shown"))
    assert orders["trigger"] == {"interval": "6s"} and orders["labels"] == {"a": 1, "b": 2}
    assert table["lifecycle"] == {"moved_from": "old", "prevent_destroy": True}
    assert (table["labels"], table["select"]) == ({"a": 1, "b": 3}, ["id", "1 AS n"])
    assert (table["mode"], table["description"]) == ("upsert", "mine")
    assert (shown["labels"], shown["description"]) == ({"a": 1, "b": 2}, "all")
    assert "defaults" not in body(made, "connection.k")


def test_a_default_applies_to_the_types_that_have_the_key(tmp_path: Path) -> None:
    tls = "connections: {tls: {mode: require}}"
    made = shop(tmp_path, f"{{sinks: {{rows: 3, max_files_per_trigger: 10}}, {tls}}}")
    assert body(made, "sink.shown")["rows"] == 3 and "rows" not in body(made, "sink.table")
    assert body(made, "sink.table")["max_files_per_trigger"] == 10
    assert body(made, "connection.pg")["tls"] == {"mode": "require"}
    assert "tls" not in body(made, "connection.k")


def test_a_default_connection_or_type_yields_to_a_resources_own(tmp_path: Path) -> None:
    """The default connection, written inside the defaults, is one of its own for each resource."""
    text = """
    connections:
      k: {type: kafka, brokers: ["b:9092"]}
      pg: {type: postgres, host: localhost, database: s, user: u, password: "${env:P}"}
      lake: {type: files, path: ./lake, defaults: {sinks: {type: delta}}}
    sources:
      a: {for_each: [x, y], topic: '${each.key}', format: {type: text}}
      b: {type: local, schema: "id BIGINT"}
    sinks:
      c: {from: a_x}
      d: {from: a_x, connection: pg, table: t, select: [1 AS n]}
      e: {from: a_x, connection: lake, path: e}
    """
    kafka = "{type: kafka, brokers: ['${var.broker}'], description: own}"
    defaults = f"defaults: {{sources: {{connection: {kafka}}}, sinks: {{type: console}}}}\n"
    project = PROJECT + "variables: {broker: {}}\n" + defaults
    given: dict[str, str | bytes] = {"mzplan.yaml": project, "shop.yaml": text}
    made = load(tmp_path, given, variables={"broker": "b:1"})
    types = {a.name: r.type for a, r in made.resources.items() if a.is_query}
    sinks = {"c": "console", "d": "postgres", "e": "delta"}
    assert types == {**sinks, "a_x": "kafka", "a_y": "kafka", "b": "local"}
    assert body(made, "connection.source_a_x") == body(made, "connection.source_a_y")
    given["mzplan.yaml"] = project.replace("description", "descr")
    wrong = errors(tmp_path, given, variables={"broker": "b:1"})
    assert brief(wrong) == ['mzplan.yaml:4:76 MZ004 Unknown key "descr"']


def test_writing_a_default_out_is_no_change(tmp_path: Path) -> None:
    interval = "trigger: {interval: 5s}"
    written = commit(shop(tmp_path / "a", orders=interval))
    default = f"{{sources: {{{interval}}}}}"
    assert build_plan(shop(tmp_path / "b", default), written).is_empty
    assert build_plan(shop(tmp_path / "c", k=f"defaults: {default}"), written).is_empty
    assert build_plan(shop(tmp_path / "d", default, orders=interval), written).is_empty
    other = build_plan(shop(tmp_path / "e", "{sources: {trigger: {interval: 6s}}}"), written)
    assert actions(other) == {"source.orders": "update"}


# --- mistakes


@pytest.mark.parametrize(
    ("defaults", "written", "error"),
    [
        ("{sources: {trigerr: {}}}", {}, 'mzplan.yaml:3:22 MZ004 Unknown key "trigerr"'),
        # Once, though two sinks get it.
        ("{sinks: {trigger: {interval: a}}}", {}, 'mzplan.yaml:3:40 MZ005 Wrong value for "interval"'),
        ("{sinks: {trigger: {intervall: 1s}}}", {}, 'mzplan.yaml:3:30 MZ004 Unknown key "intervall"'),
        ("{source: {}}", {}, 'mzplan.yaml:3:12 MZ004 Unknown key "source"'),
        ("{sources: [a]}", {}, 'mzplan.yaml:3:12 MZ005 Wrong type for "sources"'),
        ("{connections: {defaults: {}}}", {}, 'mzplan.yaml:3:26 MZ004 Unknown key "defaults"'),
        ("", {"k": "defaults: [a]"}, 'shop.yaml:2:41 MZ005 Wrong type for "defaults"'),
        ("", {"k": "defaults: {source: {}}"}, 'shop.yaml:2:52 MZ004 Unknown key "source"'),
        ("", {"k": "defaults: {sources: 5}"}, 'shop.yaml:2:61 MZ005 Wrong type for "sources"'),
        ("", {"k": "defaults: {sources: {connection: k}}"}, 'shop.yaml:2:62 MZ004 Unknown key "connection"'),
        ("", {"k": "defaults: {sources: {slot: s}}"}, 'shop.yaml:2:62 MZ004 Unknown key "slot"'),
    ],
)
def test_a_wrong_default_is_an_error_at_its_place(
    tmp_path: Path, defaults: str, written: dict[str, str], error: str
) -> None:
    assert found(tmp_path, defaults, **written) == [error]


def test_defaults_can_not_make_a_project_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.config.defaults.MAX_NODES", 3000)
    labels = ", ".join(f"l{i}: x" for i in range(500))
    text = "sources:\n  t: {for_each: [a, b, c, d, e, f], topic: '${each.key}', format: {type: text}}\n"
    project = PROJECT + f"defaults: {{sources: {{connection: k, labels: {{{labels}}}}}}}\n"
    wrong = errors(tmp_path, {**files(""), "mzplan.yaml": project, "t.yaml": text})
    assert brief(wrong) == ["mzplan.yaml:3:12 MZ007 Defaults make the project too large"]


def test_a_secret_in_a_default_is_held_to_the_rules_of_its_place(tmp_path: Path) -> None:
    wrong = errors(tmp_path, files("{sinks: {description: '${env:X}'}}"))
    assert [d.code for d in wrong] == ["MZ102"]
    without = {"shop.yaml": (SHOP % ("", "", "", "", "")).replace(', password: "${env:P}"', "")}
    project = PROJECT + "defaults: {connections: {password: %s}}\n"
    made = load(tmp_path, {"mzplan.yaml": project % "'${env:OTHER}'", **without})
    assert body(made, "connection.pg")["password"] == "${env:OTHER}"
    wrong = errors(tmp_path, {"mzplan.yaml": project % "hunter2!", **without})
    assert [d.code for d in wrong] == ["MZ016"] and "hunter2!" not in repr(wrong)


# --- statements


def test_alter_edits_a_connection_but_resets_no_default(tmp_path: Path) -> None:
    k = "defaults: {sources: {trigger: {interval: 5s}}}"
    ours = DRY + "defaults: {connections: {description: ours}}\n"
    folder = write(tmp_path, {**files("", k=k), "mzplan.yaml": ours})
    apply(folder)
    assert "left_out" not in altered(folder, "ALTER CONNECTION k SET BROKERS = ('c:9092')").json()
    assert k in (folder / "shop.yaml").read_text()
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
    before = (folder / "shop.yaml").read_bytes(), (folder / "mzplan.yaml").read_bytes()
    reset = "ALTER CONNECTION k RESET DESCRIPTION"
    assert altered(folder, reset, code=1).error()["code"] == "MZ075"
    assert ((folder / "shop.yaml").read_bytes(), (folder / "mzplan.yaml").read_bytes()) == before
    altered(folder, "ALTER CONNECTION k SET DESCRIPTION = 'own'")
    assert "description: own" in (folder / "shop.yaml").read_text()
    assert altered(folder, reset, code=1).error()["code"] == "MZ075"
    (folder / "mzplan.yaml").write_text(DRY)
    altered(folder, reset)
