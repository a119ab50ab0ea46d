"""What a new generation of a source, which reads anew, could not read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """`lost` of `read` records (or whatever `unit` says, in the plural) that the collection holds; None where
    they can't be counted. `where`: which ones, and why, for people."""

    lost: int | None
    read: int | None
    unit: str
    where: str


def as_warning(address: Address, loss: Loss) -> Diagnostic:
    """A loss for people, as a plan and an apply that allows it show it."""
    counted = (
        f"{loss.lost:,} of {loss.read:,} {loss.unit}" if loss.lost is not None else loss.unit.capitalize()
    )
    return Diagnostic(
        severity="warning",
        code="MZ292",
        kind="data-loss",
        summary=f"{counted} of {address} can't be read again",
        detail=f"{loss.where}.\nThe new collection would lack them, and so would each target that is "
        "emptied.",
        hint=f"undo what replaces {address}; or bring back what is gone; or migrate the rows with lifecycle: "
        "{replace: from-collection} in the source; or accept the loss: apply with --allow-loss.",
        address=address,
    )


def losses_of(found: Iterable[Diagnostic]) -> dict[Address, str]:
    """By source, the losses among the diagnostics, each in one line: how much was lost, and which records."""
    lost = [diagnostic for diagnostic in found if diagnostic.kind == "data-loss"]
    wheres = [loss.detail.partition("\n")[0].removesuffix(".") for loss in lost]
    return {
        loss.address: f"{loss.summary}: {where}"
        for loss, where in zip(lost, wheres, strict=True)
        if loss.address
    }


def as_refusal(warned: Diagnostic) -> Diagnostic:
    """The error for a loss that nobody has allowed."""
    return replace(warned, severity="error", exit_code=ExitCode.REFUSED)
