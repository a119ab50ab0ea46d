"""Checks what a sink writes: its expressions, the resulting columns, its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.config.checks.declared_columns import check_column_format
from mzplan.config.checks.expressions import ExpressionCheck, columns_read, keys_read
from mzplan.config.checks.resource_references import FROM
from mzplan.config.checks.sql_functions import SqlFunctions
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.model.address import Address
from mzplan.model.words import shown
from mzplan.schema.columns import Column, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.expressions import parse_select
from mzplan.schema.sql.sql_types import type_of
from mzplan.schema.target_writes import VERSION_COLUMNS, keeps_history
from mzplan.schema.user_functions import FUNCTIONS, returned_types


def check_sink(
    resource: Declaration,
    declared: Mapping[Address, Declaration],
    findings: Findings,
    functions: SqlFunctions,
) -> None:
    """Check `select`, `where`, `key` and `partition_by` of a sink whose body conforms to its schema.

    Also check that the sink can follow the updates and deletes of its source, and doesn't feed it.
    """
    body = resource.body
    source = declared.get(FROM.address(body["from"], declared))
    _check_deletes(resource, source, findings)
    _check_loop(resource, declared, findings)
    kind = resource_kind("sink", str(resource.type))
    format_ = kind.schema.get("x-column-format")
    if format_ is None and not any(key in body for key in ("select", "where", "key", "partition_by")):
        return
    columns = columns_read(source)
    names = [column.name for column in columns] if columns is not None else None
    read = source.label if source is not None else str(body["from"])
    keyed = bool(keys_read(source))
    own, known = body.get(FUNCTIONS, ()), functions.names
    check = ExpressionCheck(
        resource.label, read, findings, names, keyed, resource.location, functions=own, known=known
    )
    outputs = check.select(body["select"]) if "select" in body else check.columns
    if "where" in body:
        check.where(body["where"])
    check.check_varying(body)
    if keeps_history(body):
        _check_history(resource, source, findings)
    if outputs is not None:
        if keeps_history(body):
            _check_versions(resource, outputs, columns or (), findings)
        _check_written(resource, "key", "key", outputs, findings)
        _check_written(resource, "partition_by", "partition", outputs, findings)
        _check_partitions(resource, outputs, findings)
        path: Path = ("select",) if "select" in body else ("from",)
        hint = "give the column a shorter name in `select`: LONG_NAME AS SHORT_NAME."
        check_column_format(resource, format_, outputs, path, hint, findings)


def _check_deletes(resource: Declaration, source: Declaration | None, findings: Findings) -> None:
    """Report MZ020 for a sink that only adds rows, if it reads a collection whose rows change."""
    keys = keys_read(source)
    if not keys or source is None or resource.type is None:
        return
    kind = resource_kind("sink", resource.type)
    needed: dict[str, list[Any]] | None = kind.schema.get("x-deletes")
    body = kind.with_defaults(resource.body)
    if needed is not None and all(body.get(name) in values for name, values in needed.items()):
        return
    if needed is None:
        hint = f"a sink of type {resource.type} can't follow them: use kafka, postgres or delta, with a key."
        path: Path = ("from",)
    else:
        wanted = ", ".join(f"{name}: {values[0]}" for name, values in needed.items())
        hint = f"write `{wanted}` and `key: [{', '.join(keys)}]`."
        path = next(((name,) for name in needed if name in resource.body), ("from",))
    findings.add(
        "MZ020.sink-only",
        resource.location(path),
        source_label=source.label,
        keys=keys,
        label=resource.label,
        how=hint,
    )


def _check_history(resource: Declaration, source: Declaration | None, findings: Findings) -> None:
    """Report MZ020 for a history of a collection whose rows never change."""
    if columns_read(source) is None or source is None or keys_read(source):
        return
    findings.add(
        "MZ020.no-versions", resource.location(("mode",)), label=resource.label, source_label=source.label
    )


def _check_versions(
    resource: Declaration, outputs: list[str], columns: Sequence[Column], findings: Findings
) -> None:
    """Check that the sink's columns leave room for those of a history, and have the time of a version."""
    names = {name.lower(): name for name in outputs}
    if taken := [names[column.name] for column in VERSION_COLUMNS if column.name in names]:
        path: Path = ("select",) if "select" in resource.body else ("from",)
        findings.add(
            "MZ020.version-column",
            resource.location(path),
            label=resource.label,
            names=taken,
            first=taken[0],
        )
    time = resource.body.get("valid_from")
    if time is None:
        return
    if time.lower() not in names:
        findings.add(
            "MZ020.unknown-column",
            resource.location(("valid_from",)),
            what="time",
            names=shown(time),
            label=resource.label,
            outputs=outputs,
            near=findings.did_you_mean(time, outputs),
        )
    elif (type_ := _type_of(time, resource.body, columns)) not in (None, "TIMESTAMP"):
        findings.add(
            "MZ020.no-time", resource.location(("valid_from",)), label=resource.label, name=time, type=type_
        )


def _type_of(name: str, body: Mapping[str, Any], columns: Sequence[Column]) -> str | None:
    """Return the type of a column that a sink writes, or None if only Spark knows it."""
    types = {column.name.lower(): spark_type(column.type) for column in columns}
    for item in body.get("select", ()):
        if (parse_select(item).name or "").lower() == name.lower():
            return type_of(item, columns, returned_types(body))
    return types.get(name.lower())


def _check_loop(resource: Declaration, declared: Mapping[Address, Declaration], findings: Findings) -> None:
    """Report MZ020 for a sink that writes to its source's upstream (`x-channel`)."""
    source = declared.get(FROM.address(resource.body["from"], declared))
    if source is None or resource.type is None or source.type != resource.type:
        return
    for name, schema in resource_kind("sink", resource.type).schema["properties"].items():
        written = resource.body.get(name)
        if "x-channel" not in schema or written is None or written != source.body.get(name):
            continue
        servers = schema["x-channel"]  # the property of the connection that lists them
        if not _share_server(source, resource, servers, declared):
            continue
        findings.add(
            "MZ020.feed-itself",
            resource.location((name,)),
            label=resource.label,
            name=name,
            written=str(written),
            source_label=source.label,
            servers=servers,
        )


def _share_server(
    source: Declaration, sink: Declaration, servers: str, declared: Mapping[Address, Declaration]
) -> bool:
    """Return whether source and sink have the same connection, or connections with a server in common.

    `servers`: the property of a connection that lists its servers.
    """
    names = [str(resource.body.get("connection")) for resource in (source, sink)]
    if names[0] == names[1]:
        return True
    server_sets: list[set[str]] = []
    for name in names:
        link = declared.get(Address("connection", name))
        listed_ = link.body.get(servers) if link is not None and isinstance(link.body, dict) else None
        server_sets.append(
            {str(server).strip().lower() for server in listed_} if isinstance(listed_, list) else set()
        )
    return bool(server_sets[0] & server_sets[1])


def _check_written(
    resource: Declaration, key: str, what: str, outputs: list[str], findings: Findings
) -> None:
    """Check that the sink writes the columns that a property names."""
    written = {name.lower() for name in outputs}
    unknown = [(i, name) for i, name in enumerate(resource.body.get(key, ())) if name.lower() not in written]
    if not unknown:
        return
    (index, first), *others = unknown
    names = ", ".join(shown(name) for _, name in unknown)
    findings.add(
        "MZ020.unknown-columns" if others else "MZ020.unknown-column",
        resource.location((key, index)),
        what=what,
        names=names,
        label=resource.label,
        outputs=outputs,
        near=findings.did_you_mean(first, outputs) if not others else "",
    )


def _check_partitions(resource: Declaration, outputs: list[str], findings: Findings) -> None:
    """Check that each partition column is named once, and that the files have at least one other column."""
    names = [str(name).lower() for name in resource.body.get("partition_by", ())]
    twice = len(set(names)) < len(names)
    if names and (twice or {name.lower() for name in outputs} <= set(names)):
        findings.add(
            "MZ020.partition-column" if twice else "MZ020.nothing-left",
            resource.location(("partition_by",)),
            label=resource.label,
            outputs=outputs,
        )
