"""Groups of changes with one cause and one effect, shown as one paragraph with the names in columns.

Also the rows that a new generation reads and overwrites, in one line for each collection and target.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from mzplan.model.address import KINDS, Address
from mzplan.model.plan import Change, FieldChange, InputExtent
from mzplan.model.times import instant_text
from mzplan.model.words import count, first_names
from mzplan.plan.comparison import all_fields
from mzplan.plan.effects.targets import target_lines
from mzplan.plan.highlights import deciding_properties
from mzplan.render.text import full_length, value


def row_lines(change: Change) -> Iterator[str]:
    """Yield a line for the sink's target, and a line for each collection that is read from the start."""
    yield from target_lines(change)
    yield from _input_lines(change)


def _input_lines(change: Change) -> Iterator[str]:
    """Yield `reads all of source.orders: 1,200 rows in steps 0 to 12, since 2026-11-20T14:00:00Z`."""
    for extent in change.inputs:
        now = " as it is now, not as it was at each step" if extent.is_table else ""
        rows = f"{_rows(extent)}{_since(extent)}"
        yield f"reads {'' if now else 'all of '}{extent.address}{now}: {rows}"


def _rows(extent: InputExtent) -> str:
    steps = f"steps 0 to {extent.last_step}" if extent.last_step else "step 0"
    if extent.is_keyed:
        changes = f"{extent.rows:,} changes in " if extent.rows is not None else ""
        return f"the latest row of each key, after {changes}{steps}"
    return f"{extent.rows:,} rows in {steps}" if extent.rows is not None else steps


def _since(extent: InputExtent) -> str:
    if extent.since is None or extent.since_time is None:
        return ""
    time = instant_text(int(extent.since_time) * 1000)
    if extent.since == 0:
        return f", since {time}"
    stays = "" if extent.is_keyed else ", but their rows are still there"
    return f"; steps before {extent.since} ({time}) have expired{stays}"


LEAST = 4  # changes; fewer are just as readable one by one
_WIDTH = 100  # characters of a line
_MAX_ROWS = 4  # of names, unless all are shown
_MAX_NAMED = 8  # resources of one line
_HINT = ": -v lists them all"


def group_changes(changes: Iterable[Change], key: Callable[[Change], Hashable]) -> Iterator[list[Change]]:
    """Yield the changes as lists: LEAST or more changes with equal keys as one list, the others one by one.

    A list takes the place of its first change. `key` returns everything that a reader sees of a change,
    except its name. A renamed resource is always alone.
    """
    groups: dict[Hashable, list[Change]] = {}
    for change in changes:
        alone = change.action == "move"
        groups.setdefault(
            change.address if alone else (change.address.is_connection, key(change)), []
        ).append(change)
    for group in groups.values():
        yield from [group] if len(group) >= LEAST else [[change] for change in group]


def shapes(changes: Iterable[Change]) -> dict[Address, Hashable]:
    """Return a key for each created resource, equal for resources that one `for_each` makes or could make.

    The key contains the kind and type, the names of the properties, and the values in which most of them
    agree. It always contains where the resource leads and which rows it writes: among many such values, a
    reader wouldn't notice an odd one.
    """
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
    """Yield each property of created resources with its distinct values."""
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
    """Return a group's title, such as `99 queries restart from their checkpoints`. It has no user text."""
    if group[0].action == "create":
        return f"{count(len(group), group[0].address.kind)} are new"
    if group[0].action == "delete":
        return f"{noun(group)} are deleted"
    return f"{noun(group)} {consequence(group[0])}"


def consequence(change: Change) -> str:
    """Return the effect of such changes on running queries, in the plural. `plan_text` has the singular."""
    query = change.address.is_query
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
            return "can't be changed this way"
    return "change in place" if query else "restart nothing"


def noun(group: list[Change]) -> str:
    """Return the group's size and noun: `99 queries`, `12 connections`."""
    return f"{len(group)} {'connections' if group[0].address.kind == 'connection' else 'queries'}"


def group_row_lines(group: list[Change], *, whole: bool) -> list[str]:
    """Return the lines about the rows of all changes in the group.

    A line that only some of the changes have begins with their names. All lines appear if `whole`, or if
    data is removed or read again.
    """
    readers: dict[str, list[Address]] = {}
    for change in group:
        for line in row_lines(change):
            readers.setdefault(line, []).append(change.address)
    lines = [
        line if len(named) == len(group) else f"{first_names(named, _MAX_NAMED)}: {line}"
        for line, named in readers.items()
    ]
    if whole or _removes_rows(group) or len(lines) <= _MAX_ROWS:
        return lines
    return [*lines[:_MAX_ROWS], f"and {len(lines) - _MAX_ROWS} more such lines{_HINT}"]


def _removes_rows(group: list[Change]) -> bool:
    return group[0].action in ("delete", "replace")


def names(group: list[Change], *, whole: bool) -> Iterator[str]:
    """Yield the names in columns, by kind.

    All names appear if `whole`, or if data is removed or read again.
    """
    whole = whole or _removes_rows(group)
    for kind in KINDS:
        of_kind = [change.address.name for change in group if change.address.kind == kind]
        if of_kind:
            yield f"    {count(len(of_kind), kind)}:"
            yield from _in_columns(of_kind, " " * 6, None if whole else _MAX_ROWS, _HINT)


def _in_columns(names: Sequence[str], indent: str, rows: int | None = _MAX_ROWS, hint: str = "") -> list[str]:
    """Return the names, line by line. Beyond `rows` lines (None: no limit), it shows a count and `hint`."""
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
