"""Checks the expectations of a source or view: their conditions, their columns, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.config.checks.expressions import ExpressionCheck, columns_read, keys_read
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.schema.expectations import EXPECT, columns_not_null
from mzplan.schema.expressions import parse_where
from mzplan.schema.relations.analysis import recomputes


def check_expectations(resource: Declaration, findings: Findings) -> None:
    """Check the expectations of a source or view whose body conforms to its schema."""
    columns = columns_read(resource)
    names = [column.name for column in columns] if columns is not None else None
    keyed = bool(keys_read(resource))
    check = ExpressionCheck(resource.label, resource.label, findings, names, keyed, resource.location)
    for name, stated in resource.body.get(EXPECT, {}).items():
        path: Path = (EXPECT, name)
        if ("check" in stated) == ("not_null" in stated):
            problem = "two conditions" if "check" in stated else "no condition"
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
            _check_columns(resource, stated, path, names, findings)
        if stated.get("on_violation") == "drop" and recomputes(resource.body):
            findings.add("MZ380.current", resource.location((*path, "on_violation")), label=resource.label)


def _check_columns(
    resource: Declaration, stated: Mapping[str, Any], path: Path, names: list[str], findings: Findings
) -> None:
    known = {name.lower() for name in names}
    for index, column in enumerate(columns_not_null(stated)):
        if column.lower() not in known:
            place = (*path, "not_null") if isinstance(stated["not_null"], str) else (*path, "not_null", index)
            findings.add(
                "MZ019.unknown-column",
                resource.location(place),
                name=column,
                read=resource.label,
                columns=names,
                did_you_mean=findings.did_you_mean(column, names),
            )
