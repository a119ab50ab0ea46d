"""The JSON Schemas with which editors complete and check pipeline files and mzplan.yaml.

They are made from mzplan's own schemas and those of plug-ins. So editors report the same mistakes as `mzplan
validate`, as far as a single file shows them. An editor knows neither variables nor other files. Therefore
text with `${` may stand for any value, and a source without a `type` may have each type that a connection
can give it. The schemas use JSON Schema draft 7, which every YAML language server understands.
"""

from __future__ import annotations

from typing import Any

from mzplan.model.address import KINDS, Kind
from mzplan.schema.dialect import Json
from mzplan.schema.kinds import default_types, resource_kind
from mzplan.schema.loading import load_schema, types_of

PIPELINE, PROJECT, TESTS = "pipeline.json", "project.json", "tests.json"
QUERY_FILE = "query_file"  # a property of views in files; see mzplan.config.checks.query_files
DRAFT = "http://json-schema.org/draft-07/schema#"
NAME = "^[a-z][a-z0-9_]*$"
_VARIABLE: Json = {"type": "string", "pattern": r"\$\{"}
_EACH: Json = {"type": "string", "pattern": r"^\$\{each\.value(\.[A-Za-z_][A-Za-z0-9_-]*)*\}$"}
_SECRET: Json = {
    **_VARIABLE,
    "patternErrorMessage": "A secret is written as a reference, such as ${env:NAME} or ${file:PATH}.",
}
_DROPPED = ("$schema", "$id", "title", "$comment")
# Keywords that text with a variable in it may violate.
_NARROWS = ("const", "enum", "pattern", "maxLength", "minLength", "minimum", "maximum", "format")
_ABOUT = ("description", "default")


def editor_schemas() -> dict[str, Json]:
    """Return the schemas of pipeline files, mzplan.yaml and files of tests, by the schema's file name.

    Raises MzplanError MZ080 for a broken plug-in.
    """
    return {PIPELINE: declarations_schema(), PROJECT: project_schema(), TESTS: tests_schema()}


def declarations_schema() -> Json:
    """Return the schema of a file with connections, sources, views and sinks."""
    about = {
        "connection": "Connections by name: how to reach servers and storage, and how to log in.",
        "source": "Sources by name: streaming queries from an upstream into a collection.",
        "view": "Views by name: streaming queries in SQL from collections into a collection of their own.",
        "sink": "Sinks by name: streaming queries from a collection to a target.",
    }
    return {
        "$schema": DRAFT,
        "title": "mzplan: connections, sources, views and sinks",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            f"{kind}s": {
                "description": about[kind],
                "type": ["object", "null"],
                "propertyNames": {"pattern": NAME},
                "additionalProperties": {"$ref": f"#/definitions/{kind}"},
            }
            for kind in KINDS
        },
        "definitions": {
            **{kind: _of_any_type(kind) for kind in KINDS},
            **{f"{kind}.{type_}": _resource(kind, type_) for kind in KINDS for type_ in types_of(kind)},
        },
    }


def project_schema() -> Json:
    """Return the schema of mzplan.yaml, which may also declare resources."""
    schema = _edit(load_schema("project"))
    pipeline = declarations_schema()
    schema["properties"] |= pipeline["properties"]
    return {
        "$schema": DRAFT,
        "title": "mzplan.yaml: a project's settings",
        **schema,
        "definitions": pipeline["definitions"],
    }


def tests_schema() -> Json:
    """Return the schema of a file of tests, which has no variables."""
    return {
        "$schema": DRAFT,
        "title": "mzplan: tests of views, sinks and sources",
        "type": "object",
        "required": ["tests"],
        "additionalProperties": False,
        "properties": {
            "tests": {
                "description": "Tests by name.",
                "type": "object",
                "additionalProperties": _without_keywords(load_schema("test")),
            }
        },
    }


def _of_any_type(kind: Kind) -> Json:
    """Return the schema of one resource of a kind, whose `type` decides which keys it has.

    A resource without a type may have the keys of each type that its connection can give it.
    """
    about = load_schema(f"{kind}.{types_of(kind)[0]}")["properties"]["type"].get("description", "")
    given = {"description": about, "type": "string", "enum": list(types_of(kind))}
    rules = [
        {
            "if": {"properties": {"type": {"const": type_}}, "required": ["type"]},
            "then": {"$ref": f"#/definitions/{kind}.{type_}"},
        }
        for type_ in types_of(kind)
    ]
    schema: Json = {"type": "object", "properties": {"type": given}}
    if kind == "connection":
        return {**schema, "required": ["type"], "allOf": rules}
    implied = {
        *default_types(kind).values(),
        *(resource_kind("connection", link).query_type(kind) for link in types_of("connection")),
    } - {None}
    without = {
        "if": {"not": {"required": ["type"]}},
        "then": {"anyOf": [{"$ref": f"#/definitions/{kind}.{type_}"} for type_ in sorted(map(str, implied))]},
    }
    return {**schema, "allOf": [*rules, without]}


def _resource(kind: Kind, type_: str) -> Json:
    loaded = written_schema(f"{kind}.{type_}")
    schema: Json = _edit(loaded, repeated=kind != "connection")
    schema["title"] = loaded.get("title", f"{kind}.{type_}")
    if kind != "connection":  # a missing key may come from `defaults`, in this file or another
        schema.pop("required", None)
        if rules := schema.pop("allOf", []):
            schema["allOf"] = [rule for rule in rules if "connection" not in _required(rule)]
    connection = schema["properties"].get("connection")
    if connection is not None and "x-reference" in loaded["properties"]["connection"]:
        about = {key: connection[key] for key in _ABOUT if key in connection}
        written_out = {"$ref": "#/definitions/connection"}
        schema["properties"]["connection"] = {**about, "anyOf": [{"type": "string"}, written_out]}
    return schema


def _required(rule: Json) -> list[str]:
    keys: list[str] = rule.get("then", {}).get("required", [])
    return keys


def _edit(schema: Any, *, repeated: bool = False) -> Any:
    """Return a schema for an editor: without mzplan's own keywords, and with variables in each value.

    `repeated`: a `for_each` may give the value of each property.
    """
    if not isinstance(schema, dict):
        return schema
    edited: Json = {key: value for key, value in schema.items() if _is_kept(key)}
    if "dependentRequired" in edited:  # its name in draft 7
        edited["dependencies"] = edited.pop("dependentRequired")
    for key in ("properties", "patternProperties"):
        if key in edited:
            edited[key] = {name: _property(inner, repeated) for name, inner in edited[key].items()}
    for key in ("items", "additionalProperties", "then", "else"):
        if key in edited:
            edited[key] = _edit(edited[key], repeated=repeated)
    for key in ("allOf", "anyOf", "oneOf"):
        if key in edited:
            edited[key] = [_edit(inner, repeated=repeated) for inner in edited[key]]
    for key in ("if", "not"):  # a condition is about the written value: a variable fulfils none
        if key in edited:
            edited[key] = _without_keywords(edited[key])
    if schema.get("x-sensitive") and schema.get("type") == "string":
        return {**{key: edited[key] for key in _ABOUT if key in edited}, **_SECRET}
    return _with_variables(edited)


def _property(schema: Any, repeated: bool) -> Any:
    """Return the schema of a property. With `repeated`, a reference can stand for a list or a mapping."""
    edited = _edit(schema, repeated=repeated)
    if not repeated or not isinstance(edited, dict) or not _is_container(edited):
        return edited
    about = {key: edited[key] for key in _ABOUT if key in edited}
    return {**about, "anyOf": [{k: v for k, v in edited.items() if k not in about}, _EACH]}


def _types(schema: Json) -> set[str]:
    type_ = schema.get("type", [])
    return {type_} if isinstance(type_, str) else set(type_)


def _is_container(schema: Json) -> bool:
    """Return whether a schema describes a list or a mapping."""
    return bool(_types(schema) & {"object", "array"}) or "properties" in schema


def _with_variables(schema: Json) -> Json:
    """Return the schema of a value that may also be text with a variable in it."""
    types = _types(schema)
    narrow = any(key in schema for key in _NARROWS) or (types and "string" not in types)
    if _is_container(schema) or not narrow:
        return schema
    about = {key: schema[key] for key in _ABOUT if key in schema}
    return {**about, "anyOf": [{k: v for k, v in schema.items() if k not in about}, _VARIABLE]}


def _without_keywords(schema: Any) -> Any:
    """Return a condition without mzplan's own keywords, whose rules for keys apply only to a mapping."""
    if isinstance(schema, dict):
        kept = {key: _without_keywords(value) for key, value in schema.items() if _is_kept(key)}
        return {"type": "object", **kept} if isinstance(kept.get("properties"), dict) else kept
    return [_without_keywords(condition) for condition in schema] if isinstance(schema, list) else schema


def _is_kept(key: str) -> bool:
    return not key.startswith("x-") and key not in _DROPPED


def modeline(place: str) -> str:
    """Return the comment in the first line of a file that tells an editor the file's schema.

    `place`: a path from the file's folder, or a URL.
    """
    return f"# yaml-language-server: $schema={place}"


def written_schema(name: str) -> Json:
    """Return the schema of a kind and type (`"source.kafka"`) with the keys that only files can have.

    These are `for_each` and `query_file`, `defaults` of a connection, and a connection inside a query.
    mzplan.config resolves them. Raises KeyError as `load_schema`.
    """
    schema = load_schema(name)
    kind = name.partition(".")[0]
    if kind in ("project", "test"):
        return schema
    properties: dict[str, Any] = {
        **schema["properties"],
        **load_schema("defaults" if kind == "connection" else "for_each")["properties"],
    }
    if any(inner.get("x-query") for inner in schema["properties"].values()):
        properties |= load_schema(QUERY_FILE)["properties"]
    connection = properties.get("connection", {})
    if "x-reference" in connection:  # by its name, or written out: see mzplan.config.declarations
        properties["connection"] = {**connection, "type": ["string", "object"]}
    return {**schema, "properties": properties}
