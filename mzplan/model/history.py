"""History: what each commit of the state records about itself, and its outcome.

The record is part of the State that it commits (`State.commit`). The outcome is known only later, and a
committed state is never rewritten. So it is stored beside the state as a CommitOutcome, written once. All
text in both is safe to print: their creators escape characters that could reorder or hide text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mzplan.model.address import Address
from mzplan.model.stored import SPARSE, Positive, text_like
from mzplan.model.tasks import TaskOutcome
from mzplan.model.times import instant

# `committed`: the command doesn't wait for queries (`state mv`). Otherwise, the worst status of any query.
CommitStatus = Literal["applied", "committed", "pending", "rejected", "failed"]


Time = Annotated[str, text_like(lambda text: instant(text) is not None, "a time")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRevision:
    """The git commit that was checked out.

    - `clean`: whether the tree matched the commit, apart from files that mzplan writes; None if git timed
      out.
    - `subject`: the first line of the commit's message.
    - `repository`: the web address of the remote `origin`, without a login; "" if it has none.
    """

    commit: str
    clean: bool | None = None
    subject: str = field(default="", metadata=SPARSE)
    repository: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """Who committed a serial, when, from what, and why.

    - `time`: ISO 8601, UTC.
    - `command`: `apply`, `state mv`.
    - `user`, `host`: of the process.
    - `actor`, `ci`: the person that a CI system names as having started the job, and the CI system.
    - `message`: the text of `-m`; else the subject of the git commit (`HEAD+ (…)` if files differed), or the
      command's own description.
    - `digest`: of the committed plan (see plan.file.digest_of_plan); empty without a plan (`state push`).
    - `summary`: the plan's changes by action, without zeros; empty without a plan.
    - `losses`: by source with a new generation, the records that can't be read again, as known at the commit.
      The command allowed the loss.
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
    """A query that hadn't converged when its command ended. `code`: a code of errors.md."""

    status: Literal["pending", "rejected", "failed"]
    reason: str = field(default="", metadata=SPARSE)
    code: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """The outcome of a commit when its command ended.

    - `seconds`: how long the command followed the commit.
    - `converged`: how many queries had converged; `open`: the queries that had not.
    - `tasks`: the results of the one-off tasks that the commit requested, by query.
    """

    lineage: str
    serial: Positive
    time: Time
    status: CommitStatus
    seconds: float = field(default=0.0, metadata=SPARSE)
    converged: int = field(default=0, metadata=SPARSE)
    open: Mapping[Address, QueryOutcome] = field(default_factory=dict, metadata=SPARSE)
    tasks: Mapping[Address, TaskOutcome] = field(default_factory=dict, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One serial.

    - `outcome`: None if its command was killed, or still waits for the queries.
    - `still_open`: the queries of `outcome.open` that haven't converged by now, perhaps as a later serial
      wants them; None if nobody has looked.
    """

    serial: int
    current: bool
    commit: CommitRecord
    outcome: CommitOutcome | None = None
    still_open: tuple[Address, ...] | None = field(default=None, metadata=SPARSE)
