"""The warnings at the top of a plan, in words. The plan's text, comment and page use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.plan.highlights import (
    changed_settings,
    losses,
    restarts_elsewhere,
    row_changes,
    server_changes,
)
from mzplan.render.markup import many
from mzplan.render.text import LED, cut, edit_of, safe

MOST = 160  # characters of an edit
LISTED = 60  # edits that lead elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """One warning.

    - `what`: what happens (`2 queries pause`); `more`: further words about it.
    - `of`: the affected addresses, or edits in one line each.
    - `grave`: whether something is lost.
    - `leads`: whether each entry is an edit that leads elsewhere. Its server is shown in full.
    - `plain`: whether the changes themselves say it as clearly.
    """

    what: str
    of: tuple[str, ...]
    more: str = ""
    grave: bool = False
    leads: bool = False
    plain: bool = False


def warnings_of(plan: Plan) -> Iterator[Warned]:
    """Yield the warnings of a plan, the most important first."""
    for loss in losses(plan):
        yield Warned(
            what=loss.summary,
            more=" (apply needs `--allow-loss`)",
            of=(safe(loss.detail.partition("\n")[0].removesuffix(".")),),
            grave=True,
        )
    queries = [change for change in plan.changes if change.address.kind != "connection"]
    if listed := _with((c for c in queries if not c.migrates_rows), "replace"):
        yield Warned(
            what=f"{many(len(listed), 'query begins', 'queries begin')} again and will read everything again",
            more=" (a new generation; apply needs `--allow-replace`)",
            of=listed,
            grave=True,
        )
    if listed := tuple(str(change.address) for change in queries if change.migrates_rows):
        begin = many(len(listed), "source begins", "sources begin")
        whose = "its collection" if len(listed) == 1 else "their collections"
        yield Warned(
            what=f"{begin} again with the rows of {whose}",
            more=" (a new generation; apply needs `--allow-replace`)",
            of=listed,
        )
    if listed := _with(queries, "delete"):
        yield Warned(
            what=f"{many(len(listed), 'query stops and is', 'queries stop and are')} deleted",
            of=listed,
            grave=True,
        )
    if listed := _with(queries, "pause"):
        yield Warned(what=many(len(listed), "query pauses", "queries pause"), of=listed)
    elsewhere = server_changes(plan)
    connections = [pair for pair in elsewhere if pair[0].address.kind == "connection"]
    yield from _leading(connections, "connection leads elsewhere", "connections lead elsewhere")
    rest = [pair for pair in elsewhere if pair[0].address.kind != "connection"]
    yield from _leading(rest, "query goes elsewhere", "queries go elsewhere")
    otherwise = row_changes(plan)
    if listed := _edits(otherwise):
        writes = many(len(listed), "sink writes", "sinks write")
        if any(change.address.writes_collection for change, _ in otherwise):
            writes = many(len(listed), "query writes", "queries write")
        yield Warned(what=f"{writes} other rows or columns", of=listed)
    ahead, others = changed_settings(plan)
    if ahead:
        listed = tuple(_edit(field, LED) for field in ahead)
        number = many(len(ahead), "setting")
        yield Warned(what=f"{number} of where runners report or listen", of=listed, leads=True)
    if listed := tuple(map(_edit, others)):
        yield Warned(what=f"{many(len(listed), 'setting')} of runners and instances", of=listed)
    if listed := _with(queries, "restart"):
        away = len(restarts_elsewhere(plan))
        yield Warned(
            what=many(len(listed), "query restarts", "queries restart"),
            more=f" from {'its checkpoint' if len(listed) == 1 else 'their checkpoints'}"
            + (f" ({away:,} elsewhere)" if away else ""),
            of=listed,
            plain=True,
        )


def _leading(
    led: Sequence[tuple[Change, tuple[FieldChange, ...]]], singular: str, plural: str
) -> Iterator[Warned]:
    if led:
        listed = tuple(f"{change.address} {_edit(field, LED)}" for change, fields in led for field in fields)
        yield Warned(what=many(len(led), singular, plural), of=listed, leads=True)


def _with(changes: Iterable[Change], fate: str) -> tuple[str, ...]:
    return tuple(str(change.address) for change in changes if change.fate == fate)


def _edits(changes: Iterable[tuple[Change, tuple[FieldChange, ...]]]) -> tuple[str, ...]:
    return tuple(f"{change.address} {', '.join(map(_edit, fields))}" for change, fields in changes)


def _edit(field: FieldChange, length: int = 0) -> str:
    """Format a changed field. `length` limits each value; 0 uses what is left of MOST."""
    path = cut(safe(field.path), MOST // 2)
    return f"{path} {edit_of(field, length or (MOST - len(path)) // 2)}"
