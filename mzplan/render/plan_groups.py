"""Changes of a plan with one cause and one effect: together one paragraph, with their names in columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from mzplan.model.plan import Change
from mzplan.model.words import count
from mzplan.render.columns import MAX_ROWS, in_columns

LEAST = 4  # changes; fewer are as readable one by one
_HINT = ": -v lists them all"


def grouped(changes: Iterable[Change], key: Callable[[Change], Hashable]) -> Iterator[list[Change]]:
    """The changes in their order; those that belong together where the first of them is. `key`: equal where
    the same is said of two changes. What is created is never like another, nor what is renamed."""
    found: dict[Hashable, list[Change]] = {}
    for change in changes:
        alone = change.action in ("create", "move")
        found.setdefault(
            change.address if alone else (change.address.kind == "connection", key(change)), []
        ).append(change)
    for group in found.values():
        yield from [group] if len(group) >= LEAST else [[change] for change in group]


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
            return f"begin again{generation}: they read from the start"
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
    for kind in ("connection", "source", "sink"):
        found = [change.address.name for change in group if change.address.kind == kind]
        if found:
            yield f"    {count(len(found), kind)}:"
            yield from in_columns(found, " " * 6, None if whole else MAX_ROWS, _HINT)
