"""Checks the columns that a source declares: valid Spark DDL that fits the format, and no name twice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.model.words import did_you_mean, shown
from mzplan.schema.columns import CHANGE, TYPE_NAMES, Column, DdlError, check_storable, parse_columns
from mzplan.schema.kinds import ResourceKind
from mzplan.schema.object_names import CUT, FORMATS, size_of
from mzplan.schema.properties import value_at
from mzplan.schema.source_columns import columns_of, default_ddl, included_columns, keys_of, record_columns

_NESTED = ("ARRAY", "MAP", "STRUCT")


def check_columns(resource: Declaration, kind: ResourceKind, findings: Findings) -> None:
    """Check that schemas are Spark DDL and fit their format, and check included columns and the key."""
    for path in kind.column_paths:
        ddl = value_at(resource.body, path)
        if not isinstance(ddl, str) or kind.property_schema(path).get("x-diff") != "columns":
            continue
        try:
            columns = parse_columns(ddl)
        except DdlError as failure:
            _report_ddl(resource, findings, path, ddl, failure)
            return
        try:
            check_storable(ddl)
        except DdlError as failure:
            _report_unstorable(resource, findings, path, failure)
        _check_fit(resource, kind, findings, path, columns)
        names = [column.name for column in columns]
        hint = "declare the column with the name that the server shows, which is shorter."
        check_column_format(resource, kind.schema.get("x-column-format"), names, path, hint, findings)
    _check_names(resource, kind, findings)
    _check_key(resource, kind, findings)


def check_column_format(
    resource: Declaration,
    format_: str | None,
    names: Sequence[str],
    path: Path,
    hint: str,
    findings: Findings,
) -> None:
    """Report MZ310 for columns whose names the server doesn't accept (`x-column-format`)."""
    wrong = [name for name in names if format_ is not None and not FORMATS[format_](name)]
    if wrong:
        findings.add(
            "MZ310.column-name",
            resource.location(path),
            column=wrong[0],
            label=resource.label,
            cut=CUT,
            wrong=map(size_of, wrong),
            how=hint,
        )


def _report_ddl(resource: Declaration, findings: Findings, path: Path, ddl: str, failure: DdlError) -> None:
    word = re.match(r"\w*", ddl[failure.offset : failure.offset + 60])
    near = did_you_mean(word.group(), TYPE_NAMES, shown) if word and "unknown type" in str(failure) else ""
    findings.add(
        "MZ018.schema-not",
        resource.location(path, offset=failure.offset, length=len(word.group()) if word else 1),
        label=resource.label,
        failure=failure,
        near=near,
    )


def _report_unstorable(resource: Declaration, findings: Findings, path: Path, failure: DdlError) -> None:
    findings.add(
        "MZ018.column-cannot",
        resource.location(path, offset=failure.offset),
        label=resource.label,
        failure=failure,
    )


def _check_fit(
    resource: Declaration,
    kind: ResourceKind,
    findings: Findings,
    path: tuple[str, ...],
    columns: Sequence[Column],
) -> None:
    """Check that a one-column format has one column of its type, and that csv has no nested columns."""
    type_ = value_at(resource.body, (*path[:-1], "type"))
    default = default_ddl(kind, path, resource.body)
    nested = [column.name for column in columns if column.type.startswith(_NESTED)]
    detail = hint = ""
    if default is not None:
        (only,) = parse_columns(default)
        if len(columns) != 1 or columns[0].type != only.type:
            detail = f"the format {type_} has one column, {only.type}"
            hint = f'write "{only}", with a name of your own, or leave the schema out.'
    elif nested and type_ in kind.property_schema(path).get("x-plain-columns", ()):
        detail = f"a field of {type_} can't hold an array, map or struct, as {', '.join(nested)}"
        hint = "make it a STRING, and parse it in `select` (from_json, split)."
    if detail:
        findings.add("MZ020.schema-not", resource.location(path), label=resource.label, why=detail, how=hint)


def _check_names(resource: Declaration, kind: ResourceKind, findings: Findings) -> None:
    """Check that no included column has the name of another column."""
    if not resource.address.reads_upstream:
        return
    known = {column.name.lower() for column in record_columns(kind.type, resource.body)}
    for part, column in included_columns(kind.type, resource.body).items():
        if column.name.lower() not in known:
            known.add(column.name.lower())
            continue
        findings.add(
            "MZ020.column-declared",
            resource.location(("include",)),
            name=column.name,
            label=resource.label,
            part=part,
        )


def _check_key(resource: Declaration, kind: ResourceKind, findings: Findings) -> None:
    """Check that a key consists of columns of the collection with simple types."""
    path = kind.key_path
    if not resource.address.reads_upstream or path is None:
        return
    columns = {column.name.lower(): column for column in columns_of(kind.type, resource.body)}
    keys = keys_of(kind.type, resource.body)
    if not columns or not keys:
        return
    _check_key_columns(resource, path, keys, columns, findings)
    _check_key_format(resource, kind, findings, keys)


def _check_key_columns(
    resource: Declaration,
    path: Path,
    keys: Sequence[str],
    columns: Mapping[str, Column],
    findings: Findings,
) -> None:
    """Check each column of a key. `columns`: by name in lower case."""
    label = resource.label
    names = [column.name for column in columns.values()]
    for index, name in enumerate(keys):
        column = columns.get(name.lower())
        if column is None:
            near = findings.did_you_mean(name, names)
            place = resource.location((*path, index))
            findings.add("MZ018.unknown-key", place, name=name, label=label, names=names, near=near)
        elif column.type.startswith(_NESTED):
            place = resource.location((*path, index))
            findings.add("MZ018.nested-key", place, name=name, label=label, type=column.type)
    if CHANGE in columns:
        findings.add("MZ018.reserved", resource.location(path), name=CHANGE, label=label)


def _check_key_format(
    resource: Declaration, kind: ResourceKind, findings: Findings, keys: Sequence[str]
) -> None:
    """Check that an upsert envelope sets the format of tombstones' keys, and that it fits the key's columns.

    Key columns that come from the record's key (`include`) are exempt.
    """
    envelope = kind.key_path[:-1] if kind.key_path is not None else ()
    path, of_values = (*envelope, "key_format"), value_at(resource.body, ("format", "type"))
    if not envelope or value_at(resource.body, (*envelope, "type")) != "upsert":
        return
    names = {name.lower() for name in keys}
    held = [c.name for c in record_columns(kind.type, resource.body) if c.name.lower() in names]
    written = value_at(resource.body, path)
    if held and written is None and of_values in ("avro", "protobuf"):
        findings.add("MZ006.missing-key-key", resource.location(envelope), label=resource.label)
    elif len(held) > 1 and written == "text":
        findings.add(
            "MZ020.text-key", resource.location(path), label=resource.label, number=len(held), held=held
        )
