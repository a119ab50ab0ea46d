"""Cause: why a query was started or stopped.

A commit stores its cause in the record of each query that it affects (`ResourceState.because`). A runner adds
the causes of its own decisions. People see all causes, so a cause never holds a secret.
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

    - `cause`: a committed `change`; a new value of a `secret`; a command (`hand`: pause, resume, restart,
      backfill, rollback); a `retry` after a failure; a `runner` that started or ended; a `hand-over` between
      instances; a `canary` that ran first, or was rolled back; an `upgrade` of the runner.
    - `serial`: the commit that requested it; 0 if no commit did.
    - `through`: the changed resource, if it isn't the query itself.
    - `detail`: further explanation for people.
    - `at`: when the query was started for this cause (ISO 8601, UTC).
    """

    cause: CauseKind
    serial: int = field(default=0, metadata=SPARSE)
    through: Address | None = field(default=None, metadata=SPARSE)
    detail: str = field(default="", metadata=SPARSE)
    at: str | None = field(default=None, metadata=SPARSE)
