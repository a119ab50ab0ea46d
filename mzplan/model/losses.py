"""Loss: the records that a new generation of a source can't read again.

Also the first copy of a collection: the rows that were there when its query started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

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
    return Diagnostic.of("MZ292.lost-by-replace", address=address, counted=counted, where=loss.where)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCopy:
    """How much of a first copy is read. By default, all of it.

    - `begun`: whether the query has ever been started.
    - `has_steps`: whether it has finished a micro-batch.
    - `read`, `ends`: what is read of each part, and where the part ends, in `unit`. For a view, each input is
      a part, and `ends` grows with the input.
    - `positions`: up to where a source has read parts of its upstream. Another generation that reads a part
      gives it the same name, so that their positions can be compared. Empty if they can't.
    - `is_behind`: whether the upstream is known to have had more than the last micro-batch has read.
    """

    begun: bool = True
    has_steps: bool = True
    read: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    unit: str = ""
    positions: Mapping[str, int] = field(default_factory=dict)
    is_behind: bool = False

    def is_complete(self, ends: tuple[int, ...] | None = None) -> bool:
        """Whether all parts are read up to `ends` (default: its own)."""
        goal = self.ends if ends is None else ends
        return self.has_steps and all(read >= end for read, end in zip(self.read, goal, strict=True))

    def progress(self) -> str:
        """Return how far the first copy is: `1,200 of 5,000 records are read`."""
        if not self.begun:
            return "it hasn't begun"
        if not self.has_steps or not self.unit:
            return "it is being read"
        read = sum(min(read, end) for read, end in zip(self.read, self.ends, strict=True))
        total = sum(self.ends)
        return f"{read:,} of {total:,} {self.unit}{'s are' if total != 1 else ' is'} read"


NOT_BEGUN = FirstCopy(begun=False, has_steps=False)
NO_STEPS = FirstCopy(has_steps=False)
