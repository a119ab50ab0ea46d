"""Compare two normalised bodies of a resource, or two settings of runners, leaf by leaf.

deepdiff finds the differing leaves. This module applies the schema: it adds the effect of each leaf
(`x-change`), hides sensitive values, and compares lists of columns column by column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.model.address import natural
from mzplan.model.plan import Effect, FieldChange
from mzplan.model.resources import Body, Instance, RunnerSettings
from mzplan.model.state import ResourceState, State
from mzplan.model.times import shortest
from mzplan.schema.columns import Column, DdlError, parse_columns
from mzplan.schema.kinds import EditKind, ResourceKind, resource_kind
from mzplan.schema.sql.sql_text import plain_sql

Path = tuple[str | int, ...]


class _Absent:
    """Stands for a leaf that a body doesn't have. None could be a value."""


ABSENT = _Absent()
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def same_body(before: Body, after: Body) -> bool:
    """Whether two normalised bodies are equal; True is not 1. Fast for equal bodies."""
    if before is after:
        return True
    if before != after:
        return False
    # Python's == holds for True, 1 and 1.0. A repr distinguishes them and costs a microsecond or two. It may
    # differ only in the order of keys; then the leaves are compared.
    return repr(before) == repr(after) or not differing_leaves(before, after)


def compare_bodies(kind: ResourceKind, before: Body, after: Body) -> tuple[FieldChange, ...]:
    """Return the leaves that differ, sorted by path, with the effects from the schema."""
    return tuple(_field_changes(kind, kind, before, after))


def compare_resources(before: ResourceState, after: ResourceState) -> tuple[FieldChange, ...]:
    """Return the leaves that differ between two records of a resource, and its type if that differs."""
    kind = resource_kind(after.address.kind, after.type)
    if before.type == after.type:
        return compare_bodies(kind, before.body, after.body)
    previous = resource_kind(before.address.kind, before.type)
    changes = [
        change
        for change in _field_changes(kind, previous, before.body, after.body)
        if change.path != "type"  # a body omits a default type
    ]
    changes.append(
        FieldChange(
            path="type",
            before=before.type,
            after=after.type,
            sensitive=False,
            effect=kind.effect(("type",), "changed"),
        )
    )
    return tuple(sorted(changes, key=lambda change: natural(change.path)))


def all_fields(resource: ResourceState) -> tuple[FieldChange, ...]:
    """Return every leaf of a resource to create, for display. The leaves have no effect."""
    kind = resource_kind(resource.address.kind, resource.type)
    return tuple(
        _leaf(path, ABSENT, value, kind.is_sensitive(path), "none")
        for path, value in _leaves_of(dict(resource.body), ())
        if path  # an empty body has no leaf
    )


def format_path(path: Path) -> str:
    """Format a path: `("brokers", 0)` → `brokers[0]`. Unusual keys are quoted: `options["a.b"]`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif _PLAIN_KEY.fullmatch(key):
            text += f".{key}" if text else key
        else:
            quoted = key.replace("\\", "\\\\").replace('"', '\\"')
            text += f'["{quoted}"]'
    return text


def _field_changes(
    kind: ResourceKind, previous: ResourceKind, before: Body, after: Body
) -> Iterator[FieldChange]:
    """Yield the leaves that differ.

    `previous` is the kind of `before`. A leaf is sensitive if either kind says so.
    """
    for path, old, new in differing_leaves(before, after):
        schema = kind.property_schema(path)
        both_text = isinstance(old, str) and isinstance(new, str)
        if both_text and schema.get("x-diff") == "columns":
            yield from _column_changes(kind, path, old, new)
            continue
        if both_text and schema.get("x-query") and plain_sql(old) == plain_sql(new):
            yield _leaf(path, old, new, False, "in-place")
            continue
        sensitive = kind.is_sensitive(path) or previous.is_sensitive(path)
        yield _leaf(path, old, new, sensitive, kind.effect(path, _edit(old, new)))


def _leaf(path: Path, old: Any, new: Any, sensitive: bool, effect: Effect) -> FieldChange:
    return FieldChange(
        path=format_path(path),
        before=None if sensitive or old is ABSENT else old,
        after=None if sensitive or new is ABSENT else new,
        sensitive=sensitive,
        effect=effect,
    )


def _edit(old: Any, new: Any) -> EditKind:
    if old is ABSENT:
        return "added"
    return "removed" if new is ABSENT else "changed"


def differing_leaves(before: Body, after: Body) -> list[tuple[Path, Any, Any]]:
    """Return the leaves that differ, sorted by path. An empty object or list is a leaf."""
    from deepdiff import DeepDiff  # imports pandas if that is installed, so only for bodies that differ

    reports = DeepDiff(
        dict(before),
        dict(after),
        view="tree",
        zip_ordered_iterables=True,  # by index: a moved item is two changes
        threshold_to_diff_deeper=0,  # leaf by leaf, even if two objects have nothing in common
        ignore_private_variables=False,  # a key that begins with __ is like any other
    )
    leaves: list[tuple[Path, Any, Any]] = []
    for report, levels in reports.items():
        for level in levels:
            path = tuple(level.path(output_format="list"))
            if report.endswith("_item_added"):
                leaves += ((below, ABSENT, new) for below, new in _leaves_of(level.t2, path))
            elif report.endswith("_item_removed"):
                leaves += ((below, old, ABSENT) for below, old in _leaves_of(level.t1, path))
            else:
                leaves.append((path, level.t1, level.t2))
    return sorted(leaves, key=lambda leaf: leaf[0])


def _leaves_of(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a value that only one of the two bodies has."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves_of(value[key], (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves_of(item, (*path, index))
    else:
        yield path, value


def _column_changes(kind: ResourceKind, path: Path, old: str, new: str) -> Iterator[FieldChange]:
    """Yield the changed columns of two schemas. The case of names is ignored, as in Spark."""
    try:
        before, after = _by_name(old), _by_name(new)
    except DdlError:
        yield _leaf(path, old, new, False, kind.effect(path, "changed"))
        return
    changed = False
    for key in sorted({*before, *after}):
        left, right = before.get(key), after.get(key)
        if left is not None and right is not None and _type_of(left) == _type_of(right):
            continue
        changed = True
        name = (right or left).name  # type: ignore[union-attr]  # at least one exists
        edit: EditKind = "added" if left is None else "removed" if right is None else "changed"
        yield _leaf((*path, name), _column_text(left), _column_text(right), False, kind.effect(path, edit))
    if not changed:
        # Only the order or the case of names differs. No column changes, but the running query's description
        # does. So the effect is a restart.
        yield _leaf(path, old, new, False, "restart")


def _by_name(ddl: str) -> dict[str, Column]:
    return {column.name.lower(): column for column in parse_columns(ddl)}


def _type_of(column: Column) -> tuple[str, bool]:
    return column.type, column.nullable


def _column_text(column: Column | None) -> Any:
    if column is None:
        return ABSENT
    return column.type if column.nullable else f"{column.type} NOT NULL"


Instances = Mapping[str, Instance]
_SECRET = "lineage.api_key"
_SECRET_URL = re.compile(r"notify\[\d+\]\.url")


def settings_changes(
    state: State, settings: RunnerSettings | None, instances: Instances
) -> tuple[FieldChange, ...]:
    """Return the settings that differ from the state's, sorted by their paths in mzplan.yaml.

    If `settings` is None, only the instances can differ. Instances count only after the first commit.
    """
    now = state.settings or RunnerSettings()
    before = _leaves(now, state.instances if state.serial else {})
    after = _leaves(settings or now, instances if state.serial else {})
    return tuple(
        FieldChange(
            path=path,
            before=None if _is_secret(path) else before.get(path),
            after=None if _is_secret(path) else after.get(path),
            sensitive=_is_secret(path),
            effect="in-place",
        )
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _is_secret(path: str) -> bool:
    return path == _SECRET or _SECRET_URL.fullmatch(path) is not None


def _leaves(settings: RunnerSettings, instances: Instances) -> dict[str, Any]:
    retries, events = settings.retries, settings.run_events
    leaves: dict[str, Any] = {
        "retain_dropped": shortest(settings.retain_dropped),
        "runner.survive_store_outage": shortest(settings.survive_store_outage),
        "retries.first": shortest(retries.first),
        "retries.last": shortest(retries.last),
        "retries.budget": retries.budget,
        "lineage.url": events.url or None,
        _SECRET: events.api_key or None,
        "lineage.timeout": shortest(events.timeout),
        "lineage.interval": shortest(events.interval),
        "lineage.namespace": events.namespace or None,
    }
    for number, hook in enumerate(settings.notify):
        leaves[f"notify[{number}].url"] = hook.url
        leaves[f"notify[{number}].on"] = ", ".join(hook.on)
    for name, instance in instances.items():
        leaves[f"instances.{name}.type"] = instance.type
    for name, place in settings.metrics.items():
        leaves[f"instances.{name}.metrics.host"] = place.host
        leaves[f"instances.{name}.metrics.port"] = place.port
    return leaves
