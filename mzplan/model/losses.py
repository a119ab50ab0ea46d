"""Loss: the records that a new generation of a source can't read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records in a collection that its source can no longer read.

    - `lost`, `read`: how many of the records that the collection has read are lost; None if unknown.
    - `unit`: the plural noun to count, such as "records".
    - `where`: which records are lost and why, for people.
    """

    lost: int | None
    read: int | None
    unit: str
    where: str


def as_warning(address: Address, loss: Loss) -> Diagnostic:
    """Return the warning about a loss, for a plan and for an apply that allows the loss."""
    counted = (
        f"{loss.lost:,} of {loss.read:,} {loss.unit}" if loss.lost is not None else loss.unit.capitalize()
    )
    return Diagnostic(
        severity="warning",
        code="MZ292",
        kind="data-loss",
        summary=f"{counted} of {address} can't be read again",
        detail=f"{loss.where}.\nThey would be missing from the new collection, from each view that is "
        "computed from it, and from each target that is emptied.",
        hint=f"undo the change that replaces {address}; or restore the records; or migrate the rows with "
        "lifecycle: {replace: from-collection} in the source; or accept the loss: apply with --allow-loss.",
        address=address,
    )


def losses_of(diagnostics: Iterable[Diagnostic]) -> dict[Address, str]:
    """Return one line for each loss among the diagnostics, by source."""
    lost = [diagnostic for diagnostic in diagnostics if diagnostic.kind == "data-loss"]
    wheres = [loss.detail.partition("\n")[0].removesuffix(".") for loss in lost]
    return {
        loss.address: f"{loss.summary}: {where}"
        for loss, where in zip(lost, wheres, strict=True)
        if loss.address
    }


def as_refusal(warning: Diagnostic) -> Diagnostic:
    """Return the error for a loss that isn't allowed."""
    return replace(warning, severity="error", exit_code=ExitCode.REFUSED)
