"""Notices about surprising effects of a plan, to read before approving it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.model.words import scalar_text
from mzplan.plan.effects.query_change import changed_readings
from mzplan.plan.highlights import has_same_query
from mzplan.plan.warnings import analysis_of
from mzplan.schema.columns import Column
from mzplan.schema.current.trace import trace
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.analysis import output_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational
from mzplan.schema.source_columns import columns_of

# The properties that decide how a current view computes its rows.
_DECIDING = frozenset(["query", "key", "refresh", "output"])


def notices_of(changes: Sequence[Change]) -> Iterator[Diagnostic]:
    """Yield notices about surprising effects of changes."""
    refilled = {c.address for c in changes if c.action == "replace" and _begins_empty(c)}
    columns = {change.address: _new_columns(change) for change in changes}
    for change in changes:
        yield from _check_snapshots(change, refilled)
        if change.action == "replace":
            yield from _waits_for_cut_over(change)
        if change.action in ("create", "replace") or change.effect == "restart":
            yield from _announcements(change, columns)
        if change.action in ("update", "restart", "move"):
            yield from _notices(change)
            yield from _upstream_notices(change)


def _begins_empty(change: Change) -> bool:
    """Whether the readers of a replaced query find no rows at first."""
    is_beside = change.after is not None and change.after.is_replaced_beside
    return not (change.migrates_rows or is_beside)


def _check_snapshots(change: Change, refilled: Container[Address]) -> Iterator[Diagnostic]:
    """Yield MZ045, a warning, for a running view whose snapshots begin a new, empty generation."""
    after = change.after
    if change.before is None or after is None or after.paused:
        return
    tables = sorted({str(address) for address in after.snapshots.values() if address in refilled})
    if tables:
        named = " and ".join(tables)
        yield Diagnostic.of("MZ045.reads-snapshots", address=change.address, named=named)


def _waits_for_cut_over(change: Change) -> Iterator[Diagnostic]:
    """Yield MZ045 for a query whose new generation comes into service by hand."""
    before, after = change.before, change.after
    if before is not None and after is not None and after.is_replaced_beside and after.waits_for_cut_over:
        yield Diagnostic.of(
            "MZ045.waits-for-cut-over",
            address=after.address,
            generation=after.generation,
            former=before.generation,
        )


def _notices(change: Change) -> Iterator[Diagnostic]:
    """Yield the schema's notice for each changed property (`x-notice`), once for each property."""
    if change.after is None:
        return
    kind = resource_kind(change.address.kind, change.after.type)
    shown: set[str] = set()
    for leaf in change.fields:
        name = leaf.property_name
        schema = kind.schema["properties"].get(name, {})
        text = schema.get("x-notice")
        if schema.get("x-query") and has_same_query(change):
            continue
        if schema.get("x-rows") and change.query is not None and change.query.recomputes:
            continue  # the plan says so beside the query
        if text and name not in shown:
            shown.add(name)
            yield Diagnostic.of("MZ045.change", address=change.address, name=name, text=text)
    for input_, (before, now) in changed_readings(change).items():
        reads = f"the query reads {input_} {_times(now)} instead of {_times(before)}"
        effect = (
            "the added readings begin where the view is now"
            if before < now
            else "the view continues once its former readings are at the same position"
        )
        yield Diagnostic.of("MZ045.changed-reads", address=change.address, reads=reads, effect=effect)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _announcements(change: Change, columns: Mapping[Address, set[Column]]) -> Iterator[Diagnostic]:
    """Yield notices about other effects of a query's start (`x-announces`).

    A new query announces them, and a query that may need other tables or columns on its server than before.
    `columns`: by changed collection, its new columns.
    """
    if change.after is None or not _may_need_more(change, change.after, columns):
        return
    kind = resource_kind(change.address.kind, change.after.type)
    body = kind.with_defaults(change.after.body)
    for name, schema in kind.schema["properties"].items():
        texts = schema.get("x-announces")
        if texts is None or name not in body:
            continue
        value = scalar_text(body[name])
        if text := texts.get(value):
            yield Diagnostic.of("MZ045.has-effect", address=change.address, text=text, name=name, value=value)


def _may_need_more(change: Change, after: ResourceState, columns: Mapping[Address, set[Column]]) -> bool:
    """Return whether a query may need another table than before, or more columns."""
    if change.before is None:
        return True
    properties = resource_kind(change.address.kind, after.type).schema["properties"]
    for leaf in change.fields:
        schema = properties.get(leaf.property_name, {})
        if leaf.effect == "replace" or leaf.property_name == "select" or "x-reference" in schema:
            return True
    takes_new = any("*" in item for item in after.body.get("select", "*"))
    return takes_new and any(columns.get(read) for read in after.references.values())


def _new_columns(change: Change) -> set[Column]:
    """Return the columns that a collection gains, also those that get another type."""
    if change.before is None or change.after is None or not change.address.writes_collection:
        return set()
    before, after = (columns_of(r.type, r.body) for r in (change.before, change.after))
    return set(after) - set(before)


def _upstream_notices(change: Change) -> Iterator[Diagnostic]:
    """Yield how a query reacts if its connection now leads to another upstream (`x-upstream`)."""
    repointed = any(leaf.path == "connection" for leaf in change.fields)
    may_move = repointed or any(cause.is_connection for cause in change.triggered_by)
    if change.after is None or change.effect != "restart" or not may_move:
        return
    kind = resource_kind(change.address.kind, change.after.type)
    role = "target" if change.address.writes_target else "upstream"
    for name, schema in kind.schema["properties"].items():
        texts = schema.get("x-upstream")
        text = texts.get(change.after.body.get(name)) if texts else None
        if text:
            yield Diagnostic.of(
                "MZ045.if-connection",
                address=change.address,
                role=role,
                text=text,
                name=name,
                value=change.after.body[name],
            )


def check_current_views(
    changes: Iterable[Change], resources: Mapping[Address, ResourceState]
) -> Iterator[Diagnostic]:
    """Yield MZ045, a notice, for each current view that is new, or computes its rows in another way.

    `resources`: the records after the plan.
    """
    for change in changes:
        view = change.after
        if view is None or change.action == "delete" or not is_relational(view.body):
            continue
        if output_of(view.body).streams or view.body.get("refresh") == "full":
            continue
        is_new = change.action in ("create", "replace")
        if not is_new and not any(field.property_name in _DECIDING for field in change.fields):
            continue
        try:
            traced = trace(analysis_of(view, resources))
        except QueryError:  # the checks of the files have reported it
            continue
        if traced.why_full:
            yield Diagnostic.of("MZ045.computes-all", address=view.address, why=traced.why_full)
        else:
            keys, inputs = list(traced.keys), [str(address) for address in view.reads.values()]
            yield Diagnostic.of("MZ045.computes-some", address=view.address, keys=keys, inputs=inputs)
