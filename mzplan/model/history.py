"""History: what each commit of the state records of itself, and how it has ended.

The record is part of the State that it commits (`State.commit`). How a commit has ended is known only later,
and a committed state is never rewritten: that is a CommitOutcome beside it, written once. All text in both is
safe to print: whoever makes one has escaped what could reorder or hide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mzplan.model.address import Address
from mzplan.model.stored import SPARSE, Positive, text_like
from mzplan.model.times import instant

# `committed`: by a command that waits for nobody (`state mv`); the others as of queries, the worst of them.
CommitStatus = Literal["applied", "committed", "pending", "rejected", "failed"]


Time = Annotated[str, text_like(lambda text: instant(text) is not None, "a time")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRevision:
    """What was checked out. `clean`: whether the tree was as that commit has it, apart from what mzplan
    writes itself; None where git could not say so in time. `subject`: the first line of its message."""

    commit: str
    clean: bool | None = None
    subject: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Who has committed a serial, when, from what, and why.

    - `time`: ISO 8601, UTC. `command`: `apply`, `state mv`.
    - `user`, `host`: of the process. `actor`, `ci`: whom a CI names as the one who started it, and which CI.
    - `message`: what `-m` gave; else the subject of the git commit (`HEAD+ (…)` where files differed), or
      what the command says of itself.
    - `digest`: of the plan that was committed (see plan.file.digest_of_plan); `summary`: its changes by
      action, without those that are 0. Empty where no plan was (`state push`).
    - `losses`: by source that begins anew, what could not be read again, as far as that was known then; its
      command has allowed it.
    """

    time: Time
    command: str
    user: str
    host: str
    actor: str | None = field(default=None, metadata=SPARSE)
    ci: str | None = field(default=None, metadata=SPARSE)
    message: str = field(default="", metadata=SPARSE)
    git: GitRevision | None = field(default=None, metadata=SPARSE)
    digest: str = field(default="", metadata=SPARSE)
    summary: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    losses: Mapping[Address, str] = field(default_factory=dict, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOutcome:
    """A query that had not converged when its command ended: why, in words, and the code of errors.md."""

    status: Literal["pending", "rejected", "failed"]
    reason: str = field(default="", metadata=SPARSE)
    code: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """How a commit had ended when its command did. `seconds`: how long the command has followed it.
    `converged`: how many queries had; `open`: those that had not."""

    lineage: str
    serial: Positive
    time: Time
    status: CommitStatus
    seconds: float = field(default=0.0, metadata=SPARSE)
    converged: int = field(default=0, metadata=SPARSE)
    open: Mapping[Address, QueryOutcome] = field(default_factory=dict, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One serial. `outcome`: None where nobody has seen how it ended: its command was killed, or still
    follows it."""

    serial: int
    current: bool
    commit: CommitRecord
    outcome: CommitOutcome | None = None
