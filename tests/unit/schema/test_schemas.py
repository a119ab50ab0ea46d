"""Every schema says of every property what mzplan needs to know of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from mzplan.model.address import KINDS, Kind
from mzplan.model.plan import EFFECTS, Effect
from mzplan.schema import loading
from mzplan.schema.dialect import dialect, fault_of, schema_folder, words
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import load_schema, schema_names
from mzplan.schema.properties import walk_properties

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_schema_keeps_to_the_dialect(path: Path) -> None:
    """As jsonschema sees it, and as jsonschema-rs does when the schema is loaded."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert fault_of(schema) == fault_of(schema, own=True) == ""


def test_the_dialect_has_the_words_that_schemas_use_and_no_others() -> None:
    known = set(words())
    assert known == set(dialect()["$defs"]["schema"]["$defs"]["word"]["enum"])
    assert known == {word for path in FILES for word in _words(json.loads(path.read_text(encoding="utf-8")))}
    assert all(said and not said.endswith(".") for said in words().values())


def _words(schema: Any) -> Iterator[str]:
    """The words of a file, wherever a schema may be; the dialect itself uses none."""
    if isinstance(schema, dict) and schema.get("$id") != "mzplan:dialect.json":
        yield from (key for key in schema if key.startswith("x-"))
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from _words(inner)


def _drop(*path: str | int) -> Callable[[Any], None]:
    def change(schema: Any) -> None:
        *above, last = path
        for key in above:
            schema = schema[key]
        del schema[last]

    return change


def _set(value: Any, *path: str | int) -> Callable[[Any], None]:
    def change(schema: Any) -> None:
        *above, last = path
        for key in above:
            schema = schema[key]
        schema[last] = value

    return change


TOPIC = ("properties", "topic")
KEY = ("properties", "envelope", "properties", "key")
RULE = ("allOf", 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _drop(*TOPIC, "x-change"),
            "at /properties/topic: 'x-change' is a required property; x-change: what",
        ),
        (_drop(*TOPIC, "description"), "at /properties/topic: 'description' is a required property"),
        (_drop(*KEY, "x-sql"), "at /properties/envelope/properties/key: 'x-sql' is a required property"),
        (_set("none", *TOPIC, "x-change"), "at /properties/topic/x-change: 'none' is not one of"),
        (
            _set({"added": "no"}, *TOPIC, "x-change"),
            "at /properties/topic/x-change/added: 'no' is not one of",
        ),
        (_set("yes", *TOPIC, "x-sensitive"), "'yes' is not of type 'boolean'; x-sensitive: true or false"),
        (_set("topic", *TOPIC, "x-sql"), "at /properties/topic/x-sql: 'topic' does not match"),
        (_set("sink", *TOPIC, "x-reference"), "at /properties/topic/x-reference: 'sink' is not one of"),
        (
            _set(["kafka"], *TOPIC, "x-reference-types"),
            "'x-reference' is a dependency of 'x-reference-types'",
        ),
        (
            _set("x", *TOPIC, "x-chnage"),
            "at /properties/topic: x-chnage isn't a keyword of mzplan's schemas; did you",
        ),
        (
            _set("x", *RULE, "if", "properties", "format", "x-a"),
            "at /allOf/1/if/properties/format: x-a isn't a keyword",
        ),
        (_drop(*RULE, "x-hint"), "at /allOf/1: 'x-hint' is a dependency of 'x-summary'; x-hint: of a rule"),
        (_set("E1", *RULE, "x-code"), "at /allOf/1/x-code: 'E1' does not match"),
        (
            _set({"safe": {}}, "x-replace"),
            "at /x-replace: 'property' is a required property; x-replace: of a",
        ),
        (_set("text", *TOPIC, "type"), "at /properties/topic/type: 'text' is not valid"),
        (_set("x", *RULE, "then", "required"), "at /allOf/1/then/required: 'x' is not of type 'array'"),
        (
            _set({"properties": {"a": {}}}, *TOPIC, "additionalProperties"),
            "additionalProperties/properties/a: ",
        ),
    ],
)
def test_what_breaks_the_dialect_is_told_with_its_place(change: Callable[[Any], None], said: str) -> None:
    schema = json.loads((schema_folder() / "source.kafka.json").read_text(encoding="utf-8"))
    whole = copy.deepcopy(schema)
    assert fault_of(whole) == ""
    change(schema)
    assert said in fault_of(schema)
    assert fault_of(schema, own=True) == fault_of(schema), "jsonschema-rs takes it for a fault, too"


def test_a_schema_is_held_against_the_dialect_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads((schema_folder() / "source.kafka.json").read_text(encoding="utf-8"))
    _drop(*TOPIC, "x-change")(schema)
    (tmp_path / "source.new.json").write_text(json.dumps(schema))
    monkeypatch.setattr(loading, "schema_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"source\.new\.json is wrong at /properties/topic: 'x-change'"):
        load_schema("source.new")


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
                reference = next(
                    r for r in resource_kind(query, wanted).references if r.kinds == ("connection",)
                )
                assert type_ in reference.types


@pytest.mark.parametrize("name", schema_names())
def test_rules_speak_to_people(name: str) -> None:
    for rule in load_schema(name).get("allOf", []):
        assert {"if", "then", "x-at", "x-summary", "x-detail", "x-hint"} <= set(rule)
        schema = load_schema(name)
        for key in rule["x-at"]:
            schema = schema["properties"][key]
