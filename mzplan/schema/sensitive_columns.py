"""Finds the columns whose values a review must not show: `labels: {sensitive: "email, phone"}`.

A column that a query computes from such a column counts too. The label names columns of the resource's own
rows; `true` means all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.state import ResourceState
from mzplan.schema.lineage import lineage_of
from mzplan.schema.source_columns import columns_of

LABEL = "sensitive"


def sensitive_columns(
    address: Address,
    resources: Mapping[Address, ResourceState],
    labelled: Collection[ResourceState] = (),
) -> frozenset[str]:
    """Return the sensitive columns of a query's rows, in lower case.

    `labelled`: other versions of the resources, whose labels count too. So an edit can't uncover a column by
    removing a label. Raises KeyError for a dangling reference.
    """
    record = resources[address]
    inputs = {read.name: read for read in record.references.values() if read.writes_collection}
    columns = {column.name: frozenset[tuple[str, str]]() for column in _columns(record)}
    if inputs:
        read = {name: resources[one] for name, one in inputs.items()}
        columns = {**columns, **lineage_of(address.kind, record.type, record.body, read).columns}
    names = frozenset(name.lower() for name in columns)
    versions = (record, *(one for one in labelled if one.id == record.id))
    own = frozenset[str]().union(*(_labelled(version.body, names) for version in versions))
    hidden = {
        (name, column)
        for name, one in inputs.items()
        for column in sensitive_columns(one, resources, labelled)
    }
    computed = (
        name for name, reads in columns.items() if any((of, one.lower()) in hidden for of, one in reads)
    )
    return own.union(name.lower() for name in computed)


def _columns(record: ResourceState) -> Collection[Any]:
    return columns_of(record.type, record.body) if record.address.writes_collection else ()


def _labelled(body: Mapping[str, Any], columns: frozenset[str]) -> frozenset[str]:
    """Return the columns that the label names; all of them if it isn't a list of columns."""
    label = (body.get("labels") or {}).get(LABEL, False)
    if label is False or label == "":
        return frozenset()
    named = {name.strip().lower() for name in str(label).split(",")}
    return frozenset(named) if named <= columns else columns
