"""Whether a part of a view can be recomputed exactly, by its checkpoint and its inputs. Needs no Spark.

The rows that a recompute writes must be rows that the next steps of the view continue from. So the inputs of
a view that keeps state must still have all rows that it has read, and the current query must have computed
all of the state. (The rows of expired steps stay in a collection.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.description import CollectionRead
from mzplan.schema.expectations import EXPECT
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.relations.tree import Input
from mzplan.schema.sql.view_query import gives_same_rows, is_row_view
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import version_read
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_index import StepIndex

_ALIASES = "aliases"


def recompute_refused(address: Address, why: str, hint: str) -> MzplanError:
    """Return MZ401 for a view that can't be recomputed in part."""
    return error("MZ401.cannot-recomputed", address=address, why=why, how=hint)


def replaced_instead(address: Address) -> str:
    """Return the command that computes all rows of a view again."""
    return f"compute all its rows again: mzplan apply --replace {address} --allow-replace"


def require_recomputable(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """Raise MzplanError MZ401 unless a part of the view can be recomputed exactly. Raises OSError."""
    if not _keeps_state(query):
        return
    why = _changed_input(query, checkpoint) or _mixed_state(query, checkpoint)
    if why:
        raise recompute_refused(query.address, why, replaced_instead(query.address))


def _keeps_state(query: ResolvedQuery) -> bool:
    """Return whether the view may keep state that its next steps continue from."""
    kind = resource_kind(query.address.kind, query.description.type)
    if kind.query_property is None:
        return query.body.get("state") != "none"
    return not (is_row_view(kind, query.body) or recomputes(query.body))


def _changed_input(query: ResolvedQuery, checkpoint: Checkpoint) -> str:
    """Return which input has lost rows that the state still has, as a sentence; "" if none has."""
    for read in query.description.reads.values():
        history = StepHistory(checkpoint.warehouse, read.place)
        last, found = history.index.last(), None
        if last is not None and last.version is not None:
            found = history.foreign_between(last.version, None)
        found = found or history.index.foreign()
        if found is not None and found.version > _first_version(checkpoint, read):
            return (
                f"Another writer changed rows of {read.address} (version {found.version}), and the state of "
                f"{query.address} still has the rows as they were."
            )
        if (erased := _last_erasure(history)) is not None and erased > _first_version(checkpoint, read):
            return (
                f"Rows of {read.address} were erased (version {erased}), and the state of {query.address} "
                "still has what it computed from them."
            )
    return ""


def _last_erasure(history: StepHistory) -> int | None:
    """Return the version of a collection in which its rows were last erased; None if they weren't."""
    step = history.last_erasure()
    records = history.committed(step, step) if step is not None else ()
    return next((record.version for record in records), None)


def _first_version(checkpoint: Checkpoint, read: CollectionRead) -> int:
    """Return the version of an input that the view's first step has read; -1 if that is no longer known."""
    first = StepIndex(checkpoint).first()
    if first is None or first.step > 0:
        return -1
    table = Checkpoint.of(checkpoint.warehouse, *read.place).collection()
    ends = first.end if isinstance(first.end, list) else [first.end]
    versions = (version_read(end) for end in ends if table_of(end) == table)
    return min((version for version in versions if version is not None), default=-1)


def _mixed_state(query: ResolvedQuery, checkpoint: Checkpoint) -> str:
    """Return why another query may have computed the state, as a sentence; "" if none has."""
    entries, now = checkpoint.descriptions().entries, _row_properties(query, query.description.body)
    if entries and entries[0].step > 0:
        return f"Which query computed its state before step {entries[0].step} is no longer known."
    kind = resource_kind(query.address.kind, query.description.type)
    for number, entry in enumerate(entries):
        earlier = _row_properties(query, entry.rows)
        if gives_same_rows(kind, earlier, now):
            continue
        if why := _other_state(query, earlier, now):
            steps = f"up to step {entries[number + 1].step - 1}" if number + 1 < len(entries) else "so far"
            return f"Another query computed its state {steps}: {why}."
    return ""


def _row_properties(query: ResolvedQuery, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that decide the state. Expectations apply to the rows above it."""
    names = resource_kind(query.address.kind, query.description.type).row_properties
    return {name: body[name] for name in names if name in body and name != EXPECT}


def _other_state(query: ResolvedQuery, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return why an earlier query has computed another state than the current one would have, as a clause.

    Returns "" if both compute the same state.
    """
    property_ = resource_kind(query.address.kind, query.description.type).query_property
    if property_ is None:
        is_kept = query.body.get("state") == "kept"
        return "" if is_kept else "its function was another one, and may have kept another state"
    if earlier.get(_ALIASES) != now.get(_ALIASES):
        return "a name in it stood for another value"
    # Only a view with an earlier query needs these modules.
    from mzplan.schema.states.comparison import compare_states
    from mzplan.schema.states.description import describe_state
    from mzplan.schema.states.normal import UndecidedError

    inputs = dict(_inputs(query))
    try:
        before, after = (describe_state(str(one[property_]), inputs, one) for one in (earlier, now))
    except UndecidedError as reason:
        return f"mzplan can't compare the states: {reason}"
    changed = compare_states(before, after)
    return changed.because if changed.state != "kept" else ""


def _inputs(query: ResolvedQuery) -> Iterator[tuple[str, Input]]:
    for name, read in query.description.reads.items():
        time = query.body.get("watermarks", {}).get(name, {}).get("column", "")
        yield name, Input.of(read.type, read.body, str(read.address), stream=True, event_time=time)
