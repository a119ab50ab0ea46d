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
CauseKind = Literal[
    "change", "secret", "hand", "retry", "runner", "hand-over", "canary", "upgrade", "completed"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a query was started or stopped.

    - `cause`: the kind of cause. `change`: a commit. `secret`: a secret has a new value. `hand`: a command
      such as pause, resume, restart, backfill or rollback. `retry`: an attempt failed. `runner`: a runner
      started or ended. `hand-over`: the query moved to another instance. `canary`: the query ran first, or
      was rolled back. `upgrade`: the runner has other versions. `completed`: the query has read what was
      there (`trigger: available-now`).
    - `serial`: the commit that caused it; 0 if no commit did.
    - `through`: the changed resource, if it isn't the query itself.
    - `detail`: the explanation for people.
    - `at`: when the query was started for this cause (ISO 8601, UTC).
    """

    cause: CauseKind
    serial: int = field(default=0, metadata=SPARSE)
    through: Address | None = field(default=None, metadata=SPARSE)
    detail: str = field(default="", metadata=SPARSE)
    at: str | None = field(default=None, metadata=SPARSE)
