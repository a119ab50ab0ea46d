"""The schemas of the kinds keep to the dialect, and to the rules that it can't express."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from mzplan.model.address import KINDS, Kind
from mzplan.schema import loading
from mzplan.schema.dialect import fault_of, schema_folder
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import load_schema, schema_names, types_of
from mzplan.schema.properties import walk_properties


def test_schemas_keep_to_the_dialect() -> None:
    """As jsonschema sees it; jsonschema-rs checks a schema when it is loaded."""
    for path in schema_folder().glob("*.json"):
        assert fault_of(json.loads(path.read_text(encoding="utf-8"))) == "", path


def test_a_schema_is_checked_against_the_dialect_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads((schema_folder() / "source.kafka.json").read_text(encoding="utf-8"))
    del schema["properties"]["topic"]["x-change"]
    (tmp_path / "source.new.json").write_text(json.dumps(schema))
    monkeypatch.setattr(loading, "schema_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"source\.new\.json is wrong at /properties/topic: 'x-change'"):
        load_schema("source.new")


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_is_complete_and_takes_no_unknown_key(name: str) -> None:
    schema = load_schema(name)
    assert "$ref" not in json.dumps(schema), "every reference is filled in"
    assert schema["additionalProperties"] is False
    assert {"type", "description", "labels", "lifecycle"} <= set(schema["properties"])
    properties = list(walk_properties(schema))
    for where, inner in properties:
        assert inner.get("description"), where
        if inner.get("type") == "object" and "properties" in inner:
            assert inner.get("additionalProperties") is False, f"{where} would take any key"
        if "default" in inner:
            assert jsonschema_rs.Draft202012Validator(inner).is_valid(inner["default"]), where
        for type_ in inner.get("x-reference-types", ()):
            assert f"{inner['x-reference']}.{type_}" in schema_names()
    kind, _, type_ = name.partition(".")
    assert kind in KINDS and schema["properties"]["type"]["const"] == type_
    names = [inner[word] for _, inner in properties for word in ("x-sql", "x-sql-one") if inner.get(word)]
    assert len(names) == len(set(names))
    assert all(inner["type"] == "array" for _, inner in properties if "x-sql-one" in inner)
    assert all(word == word.upper() and word.replace(" ", "").isalpha() for word in names)
    for rule in schema.get("allOf", []):
        part = schema
        for key in rule["x-at"]:
            part = part["properties"][key]


@pytest.mark.parametrize("type_", types_of("connection"))
def test_a_connection_gives_a_type_that_refers_to_it(type_: str) -> None:
    found = resource_kind("connection", type_)
    query: Kind
    for query in ("source", "sink"):
        wanted = found.query_type(query)
        # A type may be named before its schema is there, but not the other way round.
        if wanted is not None and f"{query}.{wanted}" in schema_names():
            references = resource_kind(query, wanted).references
            assert type_ in next(r for r in references if r.kinds == ("connection",)).types
