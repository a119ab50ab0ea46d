"""Connectors of other packages: found when their type is met, and told of when they are broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.schema import kinds, loading, plugins
from mzplan.schema.loading import is_type, types_of
from tests.support import refusal
from tests.unit.cli_runs import apply, edit, mzplan, write

EXAMPLE = Path(__file__).parents[3] / "examples/connector"
CACHES: tuple[Any, ...] = (plugins._entries, plugins.find_plugin, plugins.all_plugins, kinds.resource_kind)
CACHES += (loading.load_schema, loading.schema_names, loading.types_of)


def forget() -> None:
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path, for packages as an installer would leave them."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    forget()
    for name in [name for name in sys.modules if name.startswith(("mzplan_sqlite", "acme"))]:
        del sys.modules[name]


def install(site: Path, package: str, entries: str, module: str = "") -> None:
    """What pip leaves of a package: its metadata, and perhaps a module."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mzplan.connectors]\n{entries}\n")
    if module:
        (site / f"{package.replace('-', '_')}.py").write_text(module)


def acme(change: str = "") -> str:
    """A module with a connector of a source; `change` is Python that spoils `schema` or `Connector`."""
    schema = json.loads((EXAMPLE / "mzplan_sqlite/source.sqlite.json").read_text())
    schema["properties"]["type"]["const"] = "acme"
    return (
        f"schema = {schema!r}\ntable = schema['properties']['table']\n"
        "class Connector:\n    type = 'acme'\n    def schemas(self): return {'source.acme': schema}\n"
        "    def input_factory(self): return None\n"
        f"{change}\nconnector = Connector()\n"
    )


def error() -> str:
    found = refusal(lambda: is_type("source", "acme"))
    assert found.code == "MZ080" and "acme 1.0" in found.summary, found
    return found.detail


def test_a_project_is_planned_with_a_plugin(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    install(site, "mzplan-sqlite", "sqlite = mzplan_sqlite:connector")
    folder = write(tmp_path / "p")
    text = (
        "connections: {d: {type: sqlite, path: a.db}}\n"
        'sources: {s: {connection: d, table: t, schema: "id BIGINT", max_rows: 5}}\n'
        "sinks: {k: {from: s, connection: d, table: u}}\n"
    )

    def plan(before: str = "", after: str = "") -> dict[str, str]:
        (folder / "pipeline.yaml").write_text(text)
        edit(folder, before, after)
        done = mzplan(folder, "plan", "--json")
        assert done.code in (0, 7), done
        return {change["address"]: change["action"] for change in done.json()["changes"]}

    assert plan() == {"connection.d": "create", "source.s": "create", "sink.k": "create"}
    apply(folder)
    assert plan("max_rows: 5", "max_rows: 6") == {"source.s": "update"}
    assert plan("table: t", "table: v") == {"source.s": "replace", "sink.k": "replace"}
    assert plan("path: a.db", "path: a.db, timeout: 10") == {}
    restarted = {"source.s": "restart", "sink.k": "restart"}
    assert plan("path: a.db", "path: b.db") == {"connection.d": "update", **restarted}

    for file in site.glob("*.dist-info/*"):
        file.unlink()
    forget()
    found = mzplan(folder, "status", "--json").error()
    assert found["code"] == "MZ031" and "install the package that provides this type" in found["hint"]


def test_a_property_that_cannot_change_is_refused(site: Path, tmp_path: Path) -> None:
    """Only a plugin's type can have one."""
    spoil = "del schema['properties']['connection']; schema['required'] = []; table['x-change'] = 'forbidden'"
    install(site, "acme", "acme = acme:connector", acme(spoil))
    folder = write(tmp_path / "p")
    (folder / "pipeline.yaml").write_text("sources: {s: {type: acme, table: t, schema: id BIGINT}}\n")
    apply(folder)
    edit(folder, "table: t", "table: u")
    ran = mzplan(folder, "plan")
    assert ran.code == 7 and "error[MZ042]: table in source.s can't change" in ran.out
    assert "    table: t → u  (can't change)\n" in ran.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("raise RuntimeError('no luck')", "acme:connector can't be loaded: RuntimeError: no luck"),
        ("Connector.type = 'other'", "its connector has the type 'other'"),
        ("Connector.schemas = lambda self: {}", "its schemas are []"),
        ("del Connector.input_factory", "it has a source schema but no input_factory()"),
        ("schema['properties']['type']['const'] = 'x'", 'has no property type with "const": "acme"'),
        ("del schema['allOf']", '"allOf": [{"$ref": "query.json"}]'),
        ("schema['allOf'] = [{'$ref': 'quary.json'}]", "refers to 'quary', which is not a schema of mzplan"),
        ("del table['description']", "is wrong at /properties/table: 'description' is a required property"),
        ("table['x-change'] = 'maybe'", "/properties/table/x-change: 'maybe' is not one of ['in-place'"),
        ("table['x-chnage'] = 'restart'", "isn't a keyword of mzplan's schemas; did you mean x-change?"),
        ("table['items'] = {'properties': {'a/b': {}}}", "at /properties/table/items/properties/a~1b: "),
        ("del schema['properties']['schema']['x-diff']", 'has no property with "x-diff": "columns"'),
    ],
)
def test_a_broken_plugin_is_named_with_its_package(site: Path, change: str, said: str) -> None:
    install(site, "acme", "acme = acme:connector", acme(change))
    assert said in error()
    forget()
    assert types_of("source") and is_type("source", "kafka"), "the others work"


def test_a_broken_plugin_is_an_error_where_it_is_used(site: Path, tmp_path: Path) -> None:
    install(site, "acme", "acme = acme:none", acme())
    folder = write(tmp_path / "p")
    (folder / "pipeline.yaml").write_text("sources:\n  s: {type: acme, table: t}\n  k: {type: nothing}\n")
    found = mzplan(folder, "validate", "--json").json()["diagnostics"]
    assert [(d["code"], d["range"]["line"]) for d in found] == [("MZ080", 2), ("MZ005", 3)]
    install(site, "acme-two", "acme = acme:connector")
    forget()
    assert "more than one package provides this type" in error()
