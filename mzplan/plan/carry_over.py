"""Carry-over: a replacement of a source that begins with the rows of its collection, and reads none again.

Only columns or the key may have changed for that: all else decides which records there are, or how they are
read. The sinks go on behind these rows, unless the key has changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.resources import Body
from mzplan.model.state import MOST_PREDECESSORS, Predecessor, ResourceState
from mzplan.plan.comparison import compare_bodies
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.source_columns import keys_of

FROM_COLLECTION = "from-collection"


def predecessor_of(before: ResourceState, after: ResourceState) -> Predecessor | None:
    """The generation whose rows a replaced source begins with, if its files ask for that and the source
    can do it; None if it reads its upstream from the start."""
    asked = after.body.get("lifecycle", {}).get("replace") == FROM_COLLECTION
    if not asked or not can_carry_over(before, after):
        return None
    return Predecessor(
        generation=before.generation,
        body=before.body,
        predecessor=_shortened(before.predecessor, MOST_PREDECESSORS - 1),
    )


def can_carry_over(before: ResourceState, after: ResourceState) -> bool:
    """Whether a change of its columns or its key is all that replaces the source, and the schema of its
    type offers a carry-over. A source that gains or loses its key can't: it reads its upstream in another
    way."""
    kind = resource_kind(after.address.kind, after.type)
    if before.type != after.type or not _is_offered(kind) or bool(_keys(before)) != bool(_keys(after)):
        return False
    if before.instance != after.instance and kind.holds_upstream:
        return False  # the one that it leaves gives that up, whether the other has begun or not
    body: Body = copy.deepcopy(dict(before.body))
    for path in (*kind.column_paths, *([kind.key_path] if kind.key_path is not None else [])):
        body = _with(body, path, _at(after.body, path))
    return all(field.effect in ("in-place", "restart") for field in compare_bodies(kind, body, after.body))


def sinks_go_on(change: Change) -> bool:
    """Whether the sinks of a replaced source go on behind the rows that its new generation begins with:
    they have written those rows. Not if the key changed, because then other rows are the latest of a key."""
    before, after = change.before, change.after
    if before is None or after is None or after.predecessor is None or after.place == before.place:
        return False
    return _keys(before) == _keys(after)


def carry_over_notices(changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """MZ045 for each source that begins with the rows of its collection, or could, and for the sinks that go
    on."""
    carried = {}
    for change in changes:
        if change.carries_over:
            carried[change.address] = change
            yield _source_notice(change)
        elif _is_proposed(change):
            yield _proposal(change)
        source = change.after.references.get("from") if change.after is not None else None
        if change.action in ("update", "restart") and source in carried and sinks_go_on(carried[source]):
            yield Diagnostic(
                severity="notice",
                code="MZ045",
                summary=f"{change.address}: goes on behind the rows that {source} begins with",
                detail="It has written these rows, or still writes them from the former collection: none is "
                "written twice, and what its target holds stays as it is.",
                hint=f"to have the target written anew from the collection: --replace {change.address}",
                address=change.address,
            )


def _source_notice(change: Change) -> Diagnostic:
    assert change.before is not None
    others = "" if sinks_go_on(change) else " Its key is another one, so its sinks read all of these rows."
    return Diagnostic(
        severity="notice",
        code="MZ045",
        summary=f"{change.address}: its new generation begins with the rows of generation "
        f"{change.before.generation}, cast to the new columns, as one step",
        detail="It then goes on at the same place of its upstream: no record is read twice, and none is "
        "lost. A row that can't be cast is an error, and generation "
        f"{change.before.generation} is kept until the new one is whole.{others}",
        address=change.address,
    )


def _is_proposed(change: Change) -> bool:
    """Whether a source is replaced because its own columns or key change, and does not say how
    (`replace`)."""
    before, after = change.before, change.after
    if change.action != "replace" or before is None or after is None:
        return False
    says = "replace" in after.body.get("lifecycle", {})
    own = [field for field in change.fields if field.effect == "replace"]
    leads_on = not any(field.path in after.references for field in own)
    return bool(own) and leads_on and not says and can_carry_over(before, after)


def _proposal(change: Change) -> Diagnostic:
    return Diagnostic(
        severity="notice",
        code="MZ045",
        summary=f"{change.address}: only its columns or its key change, and it would read everything again",
        detail="Its new generation can begin with the rows that the collection has, cast to the new columns, "
        "and go on at the same place of its upstream.",
        hint="say lifecycle: {replace: from-collection} in the source; or in-place, to read all again.",
        address=change.address,
    )


def _is_offered(kind: ResourceKind) -> bool:
    lifecycle = kind.schema["properties"]["lifecycle"].get("properties", {})
    return FROM_COLLECTION in lifecycle.get("replace", {}).get("enum", ())


def _keys(resource: ResourceState) -> set[str]:
    return {key.lower() for key in keys_of(resource.type, resource.body)}


def _shortened(predecessor: Predecessor | None, most: int) -> Predecessor | None:
    if predecessor is None or most == 0:
        return None
    return dataclasses.replace(predecessor, predecessor=_shortened(predecessor.predecessor, most - 1))


def _at(body: Body, path: tuple[str, ...]) -> Any:
    value: Any = body
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _with(body: Body, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The body with another value at a path. None removes the value, and each mapping that this leaves
    empty."""
    name, *rest = path
    below = body.get(name)  # of a state that was edited by hand, anything
    inner = _with(below if isinstance(below, Mapping) else {}, tuple(rest), value) if rest else value
    return {key: inner_value for key, inner_value in body.items() if key != name} | (
        {name: inner} if inner else {}
    )
