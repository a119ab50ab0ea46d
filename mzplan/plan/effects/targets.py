"""What replaced sinks do to the rows in their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from mzplan.model.address import Address
from mzplan.model.observed import Status
from mzplan.model.plan import Change, TargetEffect, TargetEffectKind
from mzplan.model.state import ResourceState
from mzplan.model.words import one_line
from mzplan.schema.kinds import resource_kind
from mzplan.schema.target_writes import (
    DIFFERENCE,
    compares_generations,
    has_same_target,
    keeps_history,
    writes_alike,
)

_GoesOn = Callable[[ResourceState, Address], bool]


def with_targets(
    changes: Sequence[Change], resources: Mapping[Address, ResourceState], statuses: Mapping[str, Status]
) -> list[Change]:
    """Return the changes, with the effect of each replaced sink on its target.

    `resources`: as they are after the plan.
    """
    moved = {
        change.address for change in changes if change.effect == "replace" and change.address.is_connection
    }
    replaced = {
        change.address
        for change in changes
        if change.action == "replace" and change.after is not None and change.after.is_replaced_beside
    }

    def goes_on(sink: ResourceState, view: Address) -> bool:
        """Whether a sink goes to another generation of a view that is or was replaced side by side."""
        seen = sink.observed_in(statuses)
        is_behind = seen is not None and seen.generation < sink.generation
        return view in replaced or (is_behind and resources[view].former_in_service(statuses) > 0)

    return [
        replace(change, target=_effect(change, moved, goes_on, statuses))
        if change.action == "replace" and change.address.writes_target
        else change
        for change in changes
    ]


def target_lines(change: Change) -> Iterator[str]:
    """Yield what happens to a sink's target: `empties public.revenue (1,200 rows written so far)`."""
    effect = change.target
    if effect is None:
        return
    name = one_line(effect.name) or "its target"
    rows = f"{effect.rows:,} rows written so far" if effect.rows is not None else ""
    in_brackets = f" ({rows})" if rows else ""
    if effect.is_moved:
        yield (
            _correction(change, name, effect.kind)
            if effect.kind in ("corrects", "records")
            else f"{'empties' if effect.kind == 'empties' else 'writes all rows to'} {name}"
        )
        former = one_line(effect.former_name) or "target"
        yield f"leaves {'the former ' if former in (name, 'target') else ''}{former} as it is{in_brackets}"
        return
    match effect.kind:
        case "empties":
            yield f"empties {name}{in_brackets}"
        case "upserts":
            yield f"writes all rows again to {name}; keys that the new query never writes stay"
        case "compares":
            read = next(iter(change.after.reads.values()), None) if change.after is not None else None
            yield (
                f"writes only the difference between the generations of {read or 'its view'} to {name}, and "
                "deletes keys that only the former one has"
            )
        case "rewrites":
            read = next(iter(change.after.reads.values()), None) if change.after is not None else None
            yield (
                f"writes all rows again to {name}, and deletes keys that only the former generation of "
                f"{read or 'its view'} has"
            )
        case "corrects" | "records":
            yield _correction(change, name, effect.kind)
        case "appends":
            yield f"writes all rows again to {name}, beside the {rows or 'rows written so far'}"


def _correction(change: Change, name: str, kind: TargetEffectKind) -> str:
    read = next(iter(change.after.reads.values()), None) if change.after is not None else None
    rebuilt = f"once {read or 'its collection'} has its rows again"
    if kind == "records":
        return f"keeps the versions in {name}, and records the difference as new versions {rebuilt}"
    return f"writes only the difference to {name} {rebuilt}, and deletes the rows of other keys"


def effect_on_target(sink: ResourceState) -> TargetEffectKind | None:
    """Return what a new generation of the sink does to its target (`x-replace`).

    Returns None if each row would be in the target twice and the sink doesn't accept that.
    """
    kind = resource_kind("sink", sink.type)
    rule = kind.schema.get("x-replace")
    if rule is None:
        return "appends"
    choice, body = sink.body.get(rule["property"]), kind.with_defaults(sink.body)
    if choice == "truncate":
        return "empties"
    if keeps_history(body):
        return "records"
    if choice == DIFFERENCE:
        return "corrects"
    if any(body.get(name) in values for name, values in rule["safe"].items()):
        return "upserts"
    return "appends" if choice is not None else None


def _effect(
    change: Change, moved: Set[Address], goes_on: _GoesOn, statuses: Mapping[str, Status]
) -> TargetEffect | None:
    """`moved`: the connections that lead to other targets than before."""
    before, after = change.before, change.after
    assert before is not None and after is not None
    effect = effect_on_target(after)
    if effect is None:
        return None
    seen = before.observed_in(statuses)
    former, name = map(target_name, (before, after))
    repointed = before.references.get("connection") != after.references.get("connection")
    is_moved = repointed or name != former or not moved.isdisjoint(change.triggered_by)
    if not is_moved and _compares(before, after, goes_on):
        effect = "compares" if writes_alike(after.type, before.body, after.body) else "rewrites"
    return TargetEffect(
        kind=effect,
        name=name,
        former_name=former,
        is_moved=is_moved,
        rows=seen.total_rows if seen is not None and seen.generation == before.generation else None,
    )


def _compares(before: ResourceState, after: ResourceState, goes_on: _GoesOn) -> bool:
    """Whether a sink compares the generations of its view, because both have the same keys in one target."""
    reads = set(after.reads.values())
    if reads != set(before.reads.values()) or not all(goes_on(before, read) for read in reads):
        return False
    if not compares_generations(after.type, after.body):
        return False
    kind = resource_kind("sink", after.type)
    bodies = kind.with_defaults(before.body), kind.with_defaults(after.body)
    return before.type == after.type and has_same_target(after.type, *bodies)


def target_name(sink: ResourceState) -> str:
    """Return the name of a sink's target, such as its table; "" if its type has none."""
    names = resource_kind("sink", sink.type).schema.get("x-replace", {}).get("targets", ())
    return next((str(sink.body[name]) for name in names if name in sink.body), "")
