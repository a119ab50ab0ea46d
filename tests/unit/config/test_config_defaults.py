"""`defaults:`, of a project and of a connection: what gets them; written out or not, they mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from tests.unit.config_files import PROJECT, brief, errors, load
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


def test_defaults_can_not_make_a_project_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.config.defaults.MAX_NODES", 3000)
    labels = ", ".join(f"l{i}: x" for i in range(500))
    text = "sources:\n  t: {for_each: [a, b, c, d, e, f], topic: '${each.key}', format: {type: text}}\n"
    project = PROJECT + f"defaults: {{sources: {{connection: k, labels: {{{labels}}}}}}}\n"
    wrong = errors(tmp_path, {**files(""), "mzplan.yaml": project, "t.yaml": text})
    assert brief(wrong) == ["mzplan.yaml:3:12 MZ007 Defaults make the project too large"]
