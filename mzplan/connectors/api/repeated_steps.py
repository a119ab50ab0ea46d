"""What is reported when a step is pushed again that the target has already (the output rule of seed 003,
which is mzplan.endpoints.replay).

After a crash Spark runs its last micro-batch again, from the same files of the collection. The rows are the
same, unless `select` or `where` changed meanwhile, or hold something like rand() or current_timestamp().
"""

from __future__ import annotations

from mzplan.connectors.api.protocols import SinkRun
from mzplan.model.diagnostics import Diagnostic


def differs(run: SinkRun, text: str, *, fails: bool) -> Diagnostic:
    """MZ088: the rows that are pushed again are not those that are written, as `text` says."""
    return Diagnostic(
        severity="error" if fails else "warning",
        code="MZ088",
        summary=f"A step of {run.query.address} is pushed again and is not what it was",
        detail=f"{text[0].upper()}{text[1:]}. select or where changed between two attempts at the step, or "
        "hold something that differs each time, such as rand().",
        hint="what is written stays as it is; "
        + ("look at it, then let the sink go on with compare: warn." if fails else "look at it."),
        address=run.query.address,
    )


def later_steps(run: SinkRun, step: int, last: int) -> Diagnostic:
    """MZ089: what the target holds already is beyond the step that is pushed."""
    return Diagnostic(
        severity="warning",
        code="MZ089",
        summary=f"The target of {run.query.address} is ahead of its checkpoint",
        detail=f"Step {step} is pushed again, and the target already has steps up to {last}. It is "
        "discarded, and nothing is appended behind later steps. The checkpoint was restored from a backup: "
        "where its steps end elsewhere than those that are written, rows are lost or there twice.",
        hint="compare the target with the collection; to be sure, begin anew: "
        f"mzplan apply --replace {run.query.address} --allow-replace",
        address=run.query.address,
    )
