"""Another target under a sink's checkpoint: refused, or what the sink says (`on_target_change`)."""

from __future__ import annotations

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.model.diagnostics import Diagnostic, ExitCode


def another_target(query: ResolvedQuery, what: str) -> Diagnostic:
    """MZ043: `what` says where, and what it is instead."""
    refusal = Diagnostic(
        code="MZ043",
        summary=f"{query.address} would write to another target",
        detail=f"{what}. The rows that were written so far are in the former one, and the checkpoint would "
        "only add what comes now.",
        hint="point the connection back to the former target; or, where it holds all rows that were written "
        "(a copy, a move), say on_target_change: accept in the sink; or let it write all rows again: "
        f"mzplan apply --replace {query.address} --allow-replace",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
    return refused_or_accepted(query, refusal)


def lacking_steps(query: ResolvedQuery, target: str, first: int, last: int) -> Diagnostic:
    """MZ069 for a target without these steps, which the checkpoint knows to be written: it was restored."""
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    refusal = Diagnostic(
        code="MZ069",
        summary=f"The target of {query.address} lacks {steps}, which its checkpoint knows to be written",
        detail=f"{target} does not hold {steps}: it was restored to an older copy. The sink would go on "
        "behind them, so their rows would be missing",
        hint="put back the copy that holds them; or, to go on without their rows, say on_target_change: "
        "accept in the sink; or let it write all rows again: "
        f"mzplan apply --replace {query.address} --allow-replace (with append, say on_replace: truncate).",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
    return refused_or_accepted(query, refusal)


def refused_or_accepted(query: ResolvedQuery, refusal: Diagnostic) -> Diagnostic:
    """The refusal; or, where the sink accepts it, a notice of what will be done."""
    if query.body.get("on_target_change") != "accept":
        return refusal
    return Diagnostic(
        severity="notice",
        code=refusal.code,
        summary=f"{query.address} goes on with its next step there (on_target_change: accept)",
        detail=refusal.detail.partition(". ")[0] + ".",
        address=query.address,
    )


def unreadable(query: ResolvedQuery, problem: OSError) -> Diagnostic:
    """MZ063: a checkpoint that does not say what it has read, or where it has written."""
    return Diagnostic(
        code="MZ063",
        summary=f"The checkpoint of {query.address} can't be read",
        detail=str(problem),
        hint="check the warehouse and its rights.",
        address=query.address,
    )
