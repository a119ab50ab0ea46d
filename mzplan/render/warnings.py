"""What a plan warns of before anything else, in words: as its text, its comment and its page have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.plan.leads import leading_elsewhere, losing, restarting_elsewhere, writing_otherwise
from mzplan.render.markup import many
from mzplan.render.text import cut, edit_of, safe

MOST = 160  # characters of one edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """`what` happens (`2 queries pause`), `more` about it, and to what: addresses, and edits in one line
    each. `grave`: something is given up. `plain`: the changes themselves say it as clearly."""

    what: str
    of: tuple[str, ...]
    more: str = ""
    grave: bool = False
    plain: bool = False


def warnings_of(plan: Plan) -> Iterator[Warned]:
    """By weight."""
    for loss in losing(plan):
        yield Warned(
            what=loss.summary,
            more=" (apply needs `--allow-loss`)",
            of=(safe(loss.detail.partition("\n")[0].removesuffix(".")),),
            grave=True,
        )
    queries = [change for change in plan.changes if change.address.kind != "connection"]
    if found := _with((c for c in queries if not c.carries_over), "replace"):
        yield Warned(
            what=f"{many(len(found), 'query begins', 'queries begin')} again and will read everything again",
            more=" (a new generation; apply needs `--allow-replace`)",
            of=found,
            grave=True,
        )
    if found := tuple(str(change.address) for change in queries if change.carries_over):
        begin = many(len(found), "source begins", "sources begin")
        whose = "its collection" if len(found) == 1 else "their collections"
        yield Warned(
            what=f"{begin} again with the rows of {whose}",
            more=" (a new generation; apply needs `--allow-replace`)",
            of=found,
        )
    if found := _with(queries, "delete"):
        yield Warned(
            what=f"{many(len(found), 'query stops and is', 'queries stop and are')} deleted",
            of=found,
            grave=True,
        )
    if found := _with(queries, "pause"):
        yield Warned(what=many(len(found), "query pauses", "queries pause"), of=found)
    elsewhere = leading_elsewhere(plan)
    if found := _edits((c, fields) for c, fields in elsewhere if c.address.kind == "connection"):
        yield Warned(what=f"{many(len(found), 'connection leads', 'connections lead')} elsewhere", of=found)
    if found := _edits((c, fields) for c, fields in elsewhere if c.address.kind != "connection"):
        yield Warned(what=f"{many(len(found), 'query goes', 'queries go')} elsewhere", of=found)
    if found := _edits(writing_otherwise(plan)):
        yield Warned(what=f"{many(len(found), 'sink writes', 'sinks write')} other rows or columns", of=found)
    if found := tuple(_edit(field) for field in plan.settings_changes):
        yield Warned(what=f"{many(len(found), 'setting')} of runners and instances", of=found)
    if found := _with(queries, "restart"):
        away = len(restarting_elsewhere(plan))
        yield Warned(
            what=many(len(found), "query restarts", "queries restart"),
            more=f" from {'its checkpoint' if len(found) == 1 else 'their checkpoints'}"
            + (f" ({away:,} elsewhere)" if away else ""),
            of=found,
            plain=True,
        )


def _with(changes: Iterable[Change], fate: str) -> tuple[str, ...]:
    return tuple(str(change.address) for change in changes if change.fate == fate)


def _edits(changes: Iterable[tuple[Change, tuple[FieldChange, ...]]]) -> tuple[str, ...]:
    return tuple(f"{change.address} {', '.join(map(_edit, fields))}" for change, fields in changes)


def _edit(field: FieldChange) -> str:
    path = cut(safe(field.path), MOST // 2)
    return f"{path} {edit_of(field, (MOST - len(path)) // 2)}"
