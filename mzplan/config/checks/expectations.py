"""Checks the expectations of a source or view: their conditions, their columns, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.config.checks.expressions import ExpressionCheck, columns_read, keys_read
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.schema.columns import Column
from mzplan.schema.expectations import DEAD_LETTER, EXPECT, REMOVING, columns_named, keeps_letters
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.sql.expressions import parse_where

_CONDITIONS = ("check", "not_null", "unique")
_LETTERS = "dead_letter"  # the property


def check_expectations(resource: Declaration, findings: Findings) -> None:
    """Check the expectations of a source or view whose body conforms to its schema."""
    own = resource.own if resource.given else resource.body
    if _LETTERS in own and not keeps_letters(resource.body) and not resource.address.reads_upstream:
        findings.add("MZ380.unused-dead-letters", resource.location((_LETTERS,)), label=resource.label)
    expectations = resource.body.get(EXPECT)
    if not expectations:
        return
    columns = columns_read(resource)
    names = [column.name for column in columns] if columns is not None else None
    keyed = bool(keys_read(resource))
    check = ExpressionCheck(resource.label, resource.label, findings, names, keyed, resource.location)
    for name, stated in expectations.items():
        path: Path = (EXPECT, name)
        conditions = [property_ for property_ in _CONDITIONS if property_ in stated]
        if len(conditions) != 1:
            problem = ("no condition", "", "two conditions", "three conditions")[len(conditions)]
            findings.add(
                "MZ380.one-condition",
                resource.location(path),
                label=resource.label,
                name=name,
                problem=problem,
            )
        elif "check" in stated:
            parsed = parse_where(stated["check"])
            if check.check_syntax(parsed, (*path, "check")):
                check.check_columns(parsed, (*path, "check"))
        elif names is not None:
            _check_columns(resource, stated, (*path, conditions[0]), names, findings)
        if conditions == ["unique"]:
            _check_unique(resource, stated, path, columns or (), findings)
        if stated.get("on_violation") == DEAD_LETTER and _LETTERS not in resource.body:
            place = resource.location((*path, "on_violation"))
            findings.add("MZ380.no-dead-letters", place, label=resource.label, name=name)
        if stated.get("on_violation") in REMOVING and recomputes(resource.body):
            findings.add("MZ380.current", resource.location((*path, "on_violation")), label=resource.label)
        if stated.get("on_violation") == "drop" and resource.body.get("batch"):
            findings.add("MZ380.batch", resource.location((*path, "on_violation")), label=resource.label)


def _check_unique(
    resource: Declaration,
    stated: Mapping[str, Any],
    path: Path,
    columns: Sequence[Column],
    findings: Findings,
) -> None:
    named = {name.lower() for name in columns_named(stated, "unique")}
    keys, place, name = keys_read(resource), resource.location((*path, "unique")), path[-1]
    if not keys:
        findings.add("MZ380.no-key", place, label=resource.label, name=name)
    elif {key.lower() for key in keys} <= named:
        findings.add("MZ380.own-key", place, label=resource.label, name=name, keys=keys)
    for column in columns:
        if column.name.lower() in named and "MAP<" in column.type:
            findings.add("MZ380.unique-map", place, name=name, column=column.name, type=column.type)
    if stated.get("on_violation") in REMOVING:
        findings.add(
            "MZ380.which-row", resource.location((*path, "on_violation")), label=resource.label, name=name
        )


def _check_columns(
    resource: Declaration, stated: Mapping[str, Any], path: Path, names: list[str], findings: Findings
) -> None:
    """Check the columns of `not_null` or `unique`, which is at the path."""
    known, property_ = {name.lower() for name in names}, str(path[-1])
    for index, column in enumerate(columns_named(stated, property_)):
        if column.lower() not in known:
            place = path if isinstance(stated[property_], str) else (*path, index)
            findings.add(
                "MZ019.unknown-column",
                resource.location(place),
                name=column,
                read=resource.label,
                columns=names,
                did_you_mean=findings.did_you_mean(column, names),
            )
