"""Events: what has happened to the queries of an instance, as its runner has written it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.history import Time
from mzplan.model.observed import Versions
from mzplan.model.stored import SPARSE

EventKind = Literal[
    "started",
    "stopped",
    "failed",
    "healed",
    "refused",
    "ddl",
    "secret",
    "generation",
    "runner-began",
    "runner-ended",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One of them. `address`: of the query; None for what is of the whole instance.

    - `kind`: a run has `started` or `stopped`; an attempt has `failed`; a query that had failed runs again
      (`healed`); a validation was `refused`; `ddl` was run in a target; a `secret` has another value; a
      `generation` has begun, is dropped or removed; the runner began or ended.
    - `at`: ISO 8601, UTC. `serial`: the newest that its runner had taken in; `epoch`: that of its lease.
    - `run_id`, `generation`, `step`: of the run; `step` is the last one that was done, None before the first.
    - `cause`: of a start or stop. `code`, `detail`: why it failed or was refused; else what there is to say.
    - `versions`: of the runner, where it begins.
    """

    at: Time
    kind: EventKind
    address: Address | None = field(default=None, metadata=SPARSE)
    serial: int = field(default=0, metadata=SPARSE)
    epoch: int = field(default=0, metadata=SPARSE)
    run_id: str | None = field(default=None, metadata=SPARSE)
    generation: int | None = field(default=None, metadata=SPARSE)
    step: int | None = field(default=None, metadata=SPARSE)
    cause: Cause | None = field(default=None, metadata=SPARSE)
    code: str = field(default="", metadata=SPARSE)
    detail: str = field(default="", metadata=SPARSE)
    versions: Versions | None = field(default=None, metadata=SPARSE)
