"""Which release of a function's package computes a view, and whether another one may continue.

The checkpoint records the release, and the description under which it was accepted. A runner with another
release continues only by the author's word, and reports the change until an apply has restarted the query.
The functions that SQL calls may be of several packages: their releases count as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.user_code.loading import LoadedFunction
from mzplan.model.diagnostics import error
from mzplan.schema.kinds import resource_kind
from mzplan.warehouse.checkpoints import Checkpoint, FunctionRelease


def release_of(functions: Iterable[LoadedFunction]) -> str:
    """Return the packages of functions with their versions, for people; "" if none is known."""
    return ", ".join(sorted({function.release for function in functions if function.release}))


def require_release(checkpoint: Checkpoint, query: ResolvedQuery, release: str) -> str:
    """Return the accepted release if another one is installed, which may continue; "" if it is the same.

    `release`: the one that is installed, "" if unknown. Raises MzplanError MZ364 if it may not continue.
    Raises OSError.
    """
    accepted = checkpoint.function()
    if accepted is None or not _differ(accepted.release, release):
        return ""
    in_sql = resource_kind(query.address.kind, query.description.type).query_property is not None
    if _needs_word(query, in_sql):
        raise error(
            "MZ364.other-version-in-sql" if in_sql else "MZ364.other-version",
            address=query.address,
            before=accepted.release,
            now=release,
        )
    return "" if accepted.digest != query.description.digest else accepted.release


def _differ(before: str, now: str) -> bool:
    """Whether a package that is in both has another version. A query may call functions of other packages."""
    versions, others = (
        {name: version for name, _, version in (one.rpartition(" ") for one in release.split(", "))}
        for release in (before, now)
    )
    return any(others[name] != version for name, version in versions.items() if name in others)


def _needs_word(query: ResolvedQuery, in_sql: bool) -> bool:
    """Whether the view has a state that only its author can call valid, and hasn't."""
    if in_sql:
        return "state" in query.description.body and query.body["on_query_change"] != "resume"
    return query.body.get("state") == "unknown" and not query.description.snapshots


def take_release(checkpoint: Checkpoint, query: ResolvedQuery, release: str) -> str:
    """Record the release that computes rows from now on, unless an apply must accept it first.

    Returns the accepted release if it is another one. Raises the errors of `require_release`.
    """
    before = require_release(checkpoint, query, release)
    now = FunctionRelease(release=release, digest=query.description.digest)
    if not before and release and checkpoint.function() != now:
        checkpoint.record_function(now)
    return before
