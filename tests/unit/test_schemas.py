"""Every schema says of every property what mzplan needs to know of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from mzplan.kinds import load_schema, resource_kind, schema_folder, schema_names, walk_properties
from mzplan.model.address import KINDS, Kind
from mzplan.model.plan import EFFECTS, Effect

FILES = sorted(schema_folder().glob("*.json"), key=lambda path: path.name)
EDITS = {"added", "removed", "changed"}


def properties(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every property of a file at any depth, those of free maps and lists too."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name), inner
        yield from properties(inner, (*path, name))
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from properties(schema[word], (*path, f"<{word}>"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_property_is_annotated(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    for where, written in properties(schema):
        inner = written
        if "$ref" in written:
            inner = json.loads((path.parent / written["$ref"]).read_text(encoding="utf-8"))
        name = f"{path.stem}: {'.'.join(where)}"
        # `type` is described once, in common.json.
        assert inner.get("description") or where == ("type",), f"{name} has no description"
        assert not inner.get("description") or inner["description"].endswith((".", '"', "h")), name
        assert "x-change" in inner, f"{name} has no x-change"
        assert isinstance(inner.get("x-sensitive"), bool), f"{name} has no x-sensitive"
        assert "x-sql" in inner and isinstance(inner["x-sql"], str | None), f"{name} has no x-sql"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_effects_are_effects(path: Path) -> None:
    assert set(EFFECTS) == set(get_args(Effect))
    for where, inner in properties(json.loads(path.read_text(encoding="utf-8"))):
        change = inner.get("x-change", "in-place")
        effects = change.values() if isinstance(change, dict) else [change]
        assert set(effects) <= set(EFFECTS) - {"none"}, where
        assert not isinstance(change, dict) or set(change) <= EDITS, where


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_schema_is_one(path: Path) -> None:
    import jsonschema_rs

    schema = json.loads(path.read_text(encoding="utf-8"))
    assert schema["$id"] == f"mzplan:{path.name}" and schema["title"]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize("name", schema_names())
def test_a_kind_stands_alone(name: str) -> None:
    schema = load_schema(name)
    assert "$ref" not in json.dumps(schema), "every reference is filled in"
    assert schema["additionalProperties"] is False
    assert {"type", "description", "labels", "lifecycle"} <= set(schema["properties"])
    for where, inner in walk_properties(schema):
        assert inner.get("description"), where
        if inner.get("type") == "object" and "properties" in inner:
            assert inner.get("additionalProperties") is False, f"{where} would take any key"
    kind, _, type_ = name.partition(".")
    assert kind in KINDS and schema["properties"]["type"]["const"] == type_


@pytest.mark.parametrize("name", schema_names())
def test_sql_names_are_unique_in_a_kind(name: str) -> None:
    properties = list(walk_properties(load_schema(name)))
    names = [inner[word] for _, inner in properties for word in ("x-sql", "x-sql-one") if inner.get(word)]
    assert len(names) == len(set(names))
    assert all(inner["type"] == "array" for _, inner in properties if "x-sql-one" in inner)
    assert all(word == word.upper() and word.replace(" ", "").isalpha() for word in names)


@pytest.mark.parametrize("name", schema_names())
def test_defaults_are_valid_and_references_lead_somewhere(name: str) -> None:
    import jsonschema_rs

    for where, inner in walk_properties(load_schema(name)):
        if "default" in inner:
            assert jsonschema_rs.Draft202012Validator(inner).is_valid(inner["default"]), where
        for type_ in inner.get("x-reference-types", ()):
            assert f"{inner['x-reference']}.{type_}" in schema_names()
    kind, _, type_ = name.partition(".")
    if kind == "connection":
        found = resource_kind("connection", type_)
        query: Kind
        for query in ("source", "sink"):
            wanted = found.query_type(query)
            # A type may be named before its schema is there, but not the other way round.
            if wanted is not None and f"{query}.{wanted}" in schema_names():
                reference = next(r for r in resource_kind(query, wanted).references if r.kind == "connection")
                assert type_ in reference.types


@pytest.mark.parametrize("name", schema_names())
def test_rules_speak_to_people(name: str) -> None:
    for rule in load_schema(name).get("allOf", []):
        assert {"if", "then", "x-at", "x-summary", "x-detail", "x-hint"} <= set(rule)
        schema = load_schema(name)
        for key in rule["x-at"]:
            schema = schema["properties"][key]
