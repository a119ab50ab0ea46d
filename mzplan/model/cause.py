"""Cause: why a query was started or stopped, as whoever has decided it says.

Who commits a change puts its cause into the record of each query that it reaches (`ResourceState.because`); a
runner adds what it does by itself. All of it is shown to people, and none of it holds a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.stored import SPARSE

NEW = "new"  # the detail of a query's first commit
CauseKind = Literal["change", "secret", "hand", "retry", "runner", "hand-over", "canary", "upgrade"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a query was started or stopped.

    - `cause`: a committed `change`; a `secret` with another value; a `hand` (pause, resume, restart,
      backfill, rollback); a `retry` after a failure; a `runner` that began or ended; a `hand-over` between
      instances; a `canary` that went first, or back; an `upgrade` of the runner.
    - `serial`: the commit that has asked for it; 0 for none. `through`: what that has changed, where it is
      not the query itself.
    - `detail`: the rest, in words. `at`: when the query was started for it (ISO 8601, UTC).
    """

    cause: CauseKind
    serial: int = field(default=0, metadata=SPARSE)
    through: Address | None = field(default=None, metadata=SPARSE)
    detail: str = field(default="", metadata=SPARSE)
    at: str | None = field(default=None, metadata=SPARSE)
