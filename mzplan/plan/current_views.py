"""Says how each new or changed current view computes its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.plan.warnings import analysis_of
from mzplan.schema.current.trace import trace
from mzplan.schema.relations.analysis import output_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational

_DECIDING = frozenset(["query", "key", "refresh", "output"])


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
