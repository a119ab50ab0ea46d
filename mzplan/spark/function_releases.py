"""Which release of a function's package computes a view, and whether another one may continue.

The checkpoint records the release, and the description under which it was accepted. A runner with another
release continues only by the author's word, and reports the change until an apply has restarted the query.
"""

from __future__ import annotations

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.user_code.loading import LoadedFunction, load_function
from mzplan.model.diagnostics import error
from mzplan.schema.user_functions import function_of
from mzplan.warehouse.checkpoints import Checkpoint, FunctionRelease


def loaded_function(query: ResolvedQuery) -> LoadedFunction | None:
    """Return the user's function of a query; None for another query. Raises MzplanError MZ361, MZ362."""
    named = function_of(query.address.kind, query.description.type, query.description.body)
    return load_function(query) if named is not None else None


def require_release(checkpoint: Checkpoint, query: ResolvedQuery, function: LoadedFunction) -> str:
    """Return the accepted release if another one is installed, which may continue; "" if it is the same.

    Raises MzplanError MZ364 if it may not continue. Raises OSError.
    """
    accepted = checkpoint.function()
    if accepted is None or not function.release or accepted.release == function.release:
        return ""
    if query.body.get("state") == "unknown" and not query.description.snapshots:
        raise error(
            "MZ364.other-version", address=query.address, before=accepted.release, now=function.release
        )
    return "" if accepted.digest != query.description.digest else accepted.release


def take_release(checkpoint: Checkpoint, query: ResolvedQuery, function: LoadedFunction) -> str:
    """Record the release that computes rows from now on, unless an apply must accept it first.

    Returns the accepted release if it is another one. Raises the errors of `require_release`.
    """
    before = require_release(checkpoint, query, function)
    now = FunctionRelease(release=function.release, digest=query.description.digest)
    if not before and function.release and checkpoint.function() != now:
        checkpoint.record_function(now)
    return before
