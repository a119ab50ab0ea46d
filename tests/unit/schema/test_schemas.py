"""The schemas of the kinds keep to the dialect, and to the rules that it can't express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import KINDS, Kind
from mzplan.schema import loading
from mzplan.schema.dialect import fault_of, schema_folder
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import load_schema, schema_names
from mzplan.schema.properties import walk_properties

FILES = sorted(schema_folder().glob("*.json"), key=lambda path: path.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_schema_keeps_to_the_dialect(path: Path) -> None:
    """As jsonschema sees it, and as jsonschema-rs does when the schema is loaded."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert fault_of(schema) == fault_of(schema, own=True) == ""


DROP = object()
TOPIC = ("properties", "topic")
KEY = ("properties", "envelope", "properties", "key")
RULE = ("allOf", 1)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (
            (*TOPIC, "x-change"),
            DROP,
            "at /properties/topic: 'x-change' is a required property; x-change: what",
        ),
        ((*TOPIC, "description"), DROP, "at /properties/topic: 'description' is a required property"),
        ((*KEY, "x-sql"), DROP, "at /properties/envelope/properties/key: 'x-sql' is a required property"),
        ((*TOPIC, "x-change"), "none", "at /properties/topic/x-change: 'none' is not one of"),
        ((*TOPIC, "x-change"), {"added": "no"}, "at /properties/topic/x-change/added: 'no' is not one of"),
        ((*TOPIC, "x-sensitive"), "yes", "'yes' is not of type 'boolean'; x-sensitive: true or false"),
        ((*TOPIC, "x-sql"), "topic", "at /properties/topic/x-sql: 'topic' does not match"),
        ((*TOPIC, "x-reference-types"), ["kafka"], "'x-reference' is a dependency of 'x-reference-types'"),
        ((*TOPIC, "x-chnage"), "x", "x-chnage isn't a keyword of mzplan's schemas; did you"),
        ((*RULE, "if", "properties", "format", "x-a"), "x", "at /allOf/1/if/properties/format: x-a isn't a"),
        ((*RULE, "x-hint"), DROP, "at /allOf/1: 'x-hint' is a dependency of 'x-summary'; x-hint: of a rule"),
        ((*TOPIC, "type"), "text", "at /properties/topic/type: 'text' is not valid"),
        ((*TOPIC, "additionalProperties"), {"properties": {"a": {}}}, "additionalProperties/properties/a: "),
    ],
)
def test_a_fault_of_a_schema_is_reported_with_its_place(
    path: tuple[Any, ...], value: Any, fault: str
) -> None:
    schema = json.loads((schema_folder() / "source.kafka.json").read_text(encoding="utf-8"))
    *above, last = path
    part = schema
    for key in above:
        part = part[key]
    if value is DROP:
        del part[last]
    else:
        part[last] = value
    assert fault in fault_of(schema)
    assert fault_of(schema, own=True) == fault_of(schema), "jsonschema-rs takes it for a fault, too"


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
    for where, inner in walk_properties(schema):
        assert inner.get("description"), where
        if inner.get("type") == "object" and "properties" in inner:
            assert inner.get("additionalProperties") is False, f"{where} would take any key"
    kind, _, type_ = name.partition(".")
    assert kind in KINDS and schema["properties"]["type"]["const"] == type_


@pytest.mark.parametrize("name", schema_names())
def test_names_of_sql_options_are_unique_in_a_kind(name: str) -> None:
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
                reference = next(
                    r for r in resource_kind(query, wanted).references if r.kinds == ("connection",)
                )
                assert type_ in reference.types


@pytest.mark.parametrize("name", schema_names())
def test_a_rule_points_at_a_property(name: str) -> None:
    for rule in load_schema(name).get("allOf", []):
        schema = load_schema(name)
        for key in rule["x-at"]:
            schema = schema["properties"][key]
