"""What the endpoints of a connector say that they have recorded of the steps of a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mzplan.endpoints.interface import Closes, HasWritten, Step
from mzplan.endpoints.replay import Written, total


@dataclass
class EndpointRecorded:
    """What the endpoints of a connector say (`written`); of several in parallel, their sum."""

    endpoints: Sequence[HasWritten]
    keys: Sequence[str] = field(default=())

    def step(self, step: Step) -> Written | None:
        parts = [part for one in self.endpoints if (part := one.written(step)) is not None]
        return total(parts) if len(parts) == len(self.endpoints) else None

    def close(self) -> None:
        for one in self.endpoints:
            if isinstance(one, Closes):
                one.close()
