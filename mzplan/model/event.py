"""Events: what happened to the queries of an instance, as its runner recorded it."""

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
    """One event in an instance's log.

    - `at`: ISO 8601, UTC.
    - `kind`: `started`, `stopped`: a run. `failed`: an attempt. `healed`: a failed query runs again.
      `refused`: a validation. `ddl`: DDL ran in a target. `secret`: a secret has a new value. `generation`:
      a generation was begun, dropped or removed. `runner-began`, `runner-ended`: the runner.
    - `address`: the query; None for an event of the whole instance.
    - `serial`: the newest serial that the runner had read; `epoch`: the epoch of its lease.
    - `run_id`, `generation`: of the run. `step`: its last finished step; None before the first.
    - `cause`: why the query started or stopped.
    - `code`, `detail`: why the query failed or was refused; for other events, `detail` explains the event.
    - `versions`: the runner's versions; only for `runner-began`.
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
