"""What is reported when a step is pushed again that the target has already (the output rule of seed 003,
which is mzplan.endpoints.replay): the same for all kinds of sinks.

After a crash Spark runs its last micro-batch again, from the same files of the collection, and under the
description that began it (mzplan.warehouse.begun). The rows are the same, unless that could not be, or they
hold something like rand() or current_timestamp().
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mzplan.connectors.api.protocols import SinkRun
from mzplan.endpoints.replay import LATER
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError


def warn_repeated(run: SinkRun, texts: Iterable[str]) -> None:
    """Report what the replay of a step has warned of, in the log and the status."""
    for text in texts:
        run.warn(later_steps(run, text) if LATER in text else differs(run.query.address, text))


def differs(address: Address, text: str) -> Diagnostic:
    """MZ088: the rows that are pushed again are not those that are written, as `text` says."""
    return Diagnostic(
        severity="warning",
        code="MZ088",
        summary=f"A step of {address} is pushed again and is not what it was",
        detail=_WHY.format(text=_sentence(text)),
        hint="what is written stays as it is, and nothing was added to it; look at it.",
        address=address,
    )


def refused(address: Address, text: str) -> MzplanError:
    """The same, with `compare: fail`."""
    hint = "what is written stays as it is; look at it, then let the sink go on with compare: warn."
    return MzplanError(replace(differs(address, text), severity="error", hint=hint))


def later_steps(run: SinkRun, text: str) -> Diagnostic:
    """MZ089: what the target holds already is beyond the step that is pushed, as `text` says."""
    return Diagnostic(
        severity="warning",
        code="MZ089",
        summary=f"The target of {run.query.address} is ahead of its checkpoint",
        detail=f"{_sentence(text)}. It is discarded, and nothing is appended behind later steps. The "
        "checkpoint was restored from a backup: where its steps end elsewhere than those that are written, "
        "rows are lost or there twice.",
        hint="compare the target with the collection; to be sure, begin anew: "
        f"mzplan apply --replace {run.query.address} --allow-replace",
        address=run.query.address,
    )


def unknown_step(run: SinkRun, step: int, last: int) -> Diagnostic:
    """MZ089 of a step of which the target keeps no record any more, so that its rows can't be counted."""
    return later_steps(run, f"step {step} is written again, {LATER}{last}")


_WHY = (
    "{text}. select or where changed between two attempts at the step, or hold something that differs each "
    "time, such as rand()."
)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
