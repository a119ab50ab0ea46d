"""The first copy of a collection: the rows that were there when its query started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCopy:
    """How much of a first copy is read. By default, all of it.

    - `begun`: whether the query has ever been started.
    - `has_steps`: whether it has finished a micro-batch.
    - `read`, `ends`: what is read of each part, and where the part ends, in `unit`. For a view, each input is
      a part, and `ends` grows with the input.
    """

    begun: bool = True
    has_steps: bool = True
    read: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    unit: str = ""

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
