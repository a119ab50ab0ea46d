"""What a file may say of a resource beside what is kept of it: shorter ways to write the same."""

from __future__ import annotations

from typing import Any

from mzplan.schema.kinds import Json, load_schema


def written_schema(name: str) -> Json:
    """`"source.kafka"` → its schema as files keep to it: with `for_each`, and a connection written inside;
    a connection has `defaults`. mzplan.config turns these into what the schema without them says. Raises
    KeyError as `load_schema`."""
    schema = load_schema(name)
    kind = name.partition(".")[0]
    if kind == "project":
        return schema
    properties: dict[str, Any] = {
        **schema["properties"],
        **load_schema("defaults" if kind == "connection" else "for_each")["properties"],
    }
    connection = properties.get("connection", {})
    if "x-reference" in connection:  # by its name, or written out: see mzplan.config.declarations
        properties["connection"] = {**connection, "type": ["string", "object"]}
    return {**schema, "properties": properties}
