"""Changes of a plan with one cause and one effect: together one paragraph, with their names in columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from mzplan.model.address import KINDS, Address
from mzplan.model.plan import Change, FieldChange
from mzplan.model.words import count
from mzplan.plan.comparison import all_fields
from mzplan.plan.leads import deciding_properties
from mzplan.render.text import value
from mzplan.render.text import whole as full_length

LEAST = 4  # changes; fewer are as readable one by one
_WIDTH = 100  # characters of a line
_MAX_ROWS = 4  # of names, where not all are shown
_HINT = ": -v lists them all"


def grouped(changes: Iterable[Change], key: Callable[[Change], Hashable]) -> Iterator[list[Change]]:
    """The changes in their order; those that belong together where the first of them is. `key`: equal where
    the same is said of two changes. What is renamed is never like another."""
    groups: dict[Hashable, list[Change]] = {}
    for change in changes:
        alone = change.action == "move"
        groups.setdefault(
            change.address if alone else (change.address.kind == "connection", key(change)), []
        ).append(change)
    for group in groups.values():
        yield from [group] if len(group) >= LEAST else [[change] for change in group]


def shapes(changes: Iterable[Change]) -> dict[Address, Hashable]:
    """For each created resource, a key that is equal for all that one `for_each` makes, or could make: its
    kind and type, which properties it has, the values in which most of them are alike, and always where it
    leads and which rows it writes. (Among many values of those, nobody would see one that stands out.)"""
    alike: dict[Hashable, list[tuple[Address, dict[str, str]]]] = {}
    deciding: dict[Hashable, frozenset[str]] = {}
    for change in changes:
        if change.action == "create" and change.after is not None:
            fields = list(all_fields(change.after))
            leaves = {field.path: _text(field) for field in fields}
            key: Hashable = (change.address.kind, change.after.type, frozenset(leaves))
            alike.setdefault(key, []).append((change.address, leaves))
            if key not in deciding:
                named = deciding_properties(change.after)
                deciding[key] = frozenset(field.path for field in fields if field.property_name in named)
    shape_of: dict[Address, Hashable] = {}
    for key, members in alike.items():
        paths = sorted(members[0][1])
        shared = [
            path
            for path in paths
            if path in deciding[key] or len({leaves[path] for _, leaves in members}) * 2 <= len(members)
        ]
        shape_of |= {address: (key, *(leaves[path] for path in shared)) for address, leaves in members}
    return shape_of


def common_fields(group: list[Change]) -> Iterator[tuple[FieldChange, tuple[str, ...]]]:
    """Each property of created resources, with its values, each once."""
    values: dict[str, dict[str, None]] = {}
    first: dict[str, FieldChange] = {}
    for change in group:
        for field in all_fields(change.after) if change.after is not None else ():
            first.setdefault(field.path, field)
            values.setdefault(field.path, {}).setdefault(_text(field))
    for path, field in first.items():
        yield field, tuple(values[path])


def _text(field: FieldChange) -> str:
    return "(sensitive)" if field.sensitive else value(field.after, full_length(field))


def title(group: list[Change]) -> str:
    """`99 queries restart from their checkpoints`, `40 sources are new`: nothing in it is anybody's text."""
    if group[0].action == "create":
        return f"{count(len(group), group[0].address.kind)} are new"
    if group[0].action == "delete":
        return f"{noun(group)} are deleted"
    return f"{noun(group)} {consequence(group[0])}"


def consequence(change: Change) -> str:
    """The effect of such changes on running queries, of many: as `plan_text` says it of one."""
    query = change.address.kind != "connection"
    if change.fate in ("pause", "resume"):
        return (
            "pause, and keep their checkpoints" if change.fate == "pause" else "resume from their checkpoints"
        )
    match change.action:
        case "restart":
            return "restart from their checkpoints"
        case "replace":
            generation = f" as generation {change.after.generation}" if change.after is not None else ""
            rows = "they begin with the rows of their collections"
            return f"begin again{generation}: {rows if change.migrates_rows else 'they read from the start'}"
        case "delete":
            return f"are deleted: {change.reason}"
    match change.effect:
        case "restart":
            return "restart from their checkpoints" if query else "restart what uses them"
        case "replace":
            return "replace what uses them"
        case "forbidden":
            return "can't be changed so"
    return "change in place" if query else "restart nothing"


def noun(group: list[Change]) -> str:
    """`99 queries`, `12 connections`."""
    return f"{len(group)} {'connections' if group[0].address.kind == 'connection' else 'queries'}"


def names(group: list[Change], *, whole: bool) -> Iterator[str]:
    """The names in columns, by kind; all of them, if `whole`, and where data is left or read again."""
    whole = whole or group[0].action in ("delete", "replace")
    for kind in KINDS:
        of_kind = [change.address.name for change in group if change.address.kind == kind]
        if of_kind:
            yield f"    {count(len(of_kind), kind)}:"
            yield from _in_columns(of_kind, " " * 6, None if whole else _MAX_ROWS, _HINT)


def _in_columns(names: Sequence[str], indent: str, rows: int | None = _MAX_ROWS, hint: str = "") -> list[str]:
    """The names, line by line. `rows`: at most so many lines of them (None: all), then how many more there
    are, and `hint`."""
    if not names:
        return []
    wide = max(map(len, names)) + 2
    across = max(1, (_WIDTH - len(indent)) // wide)
    shown = names if rows is None or len(names) <= across * rows else names[: across * rows]
    lines = [
        indent + "".join(name.ljust(wide) for name in shown[at : at + across]).rstrip()
        for at in range(0, len(shown), across)
    ]
    if len(shown) < len(names):
        lines.append(f"{indent}and {len(names) - len(shown)} more{hint}")
    return lines
