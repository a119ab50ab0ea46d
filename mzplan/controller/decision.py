"""The terms of a decision: what is wanted of a query, what was tried, and the commands that a row can get."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ProblemKind
from mzplan.model.observed import Condition
from mzplan.schema.description import Description

COMMITTED_CHANGE = Cause(cause="change")
Key = tuple[str, int, str]  # id, generation, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedQuery:
    """A committed query of `instance`. `cause` is the commit's cause for its last start or stop."""

    description: Description
    paused: bool = False
    cause: Cause = COMMITTED_CHANGE
    instance: str = ""

    @property
    def from_ids(self) -> tuple[str, ...]:
        """The ids of the collections that the query reads as streams."""
        return tuple(sorted(read.id for read in self.description.reads.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The past attempts for an address.

    It only paces retries and remembers errors. If a restart of the runner loses it, only the times of retries
    change.

    - `target`: the key of the description that the attempts are for.
    - `accepted`: the last description that ran; the store also has it.
    - `retry_at`: when the target may be tried again. `fallback_at`: when the query may fall back to the
      accepted description. Both are in monotonic seconds.
    - `last_failure`: how the last attempt at the target ended, `rejected` or `failed`.
    - `started_here`: whether this runner has started the query or found it paused, so that the next start has
      a committed cause.
    - `retry_cause`: the cause of an immediate retry, if a failure was forgiven.
    - `completed`: the last report of the target's run if the run has read what was there
      (`trigger: available-now`). The query then stays stopped while this runner leads.
    """

    target: Key | None = None
    accepted: Description | None = None
    failures: int = 0
    retry_at: float = 0.0
    fallback_at: float = 0.0
    last_failure: Condition | None = None
    error: str | None = None
    error_code: str | None = None
    error_kind: ProblemKind = ""
    healthy_since: float | None = None
    started_here: bool = False
    retry_cause: Cause | None = None
    completed: QueryReport | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether an attempt has failed, and another one is due at some time."""
        return self.last_failure is not None and not math.isinf(self.retry_at)

    @property
    def is_target_accepted(self) -> bool:
        """Whether the target is the accepted description, so that it has run before."""
        return self.accepted is not None and key_of(self.accepted) == self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop these queries and forget them. `cause`: None if the queries have ended or aren't wanted."""

    address: Address
    names: tuple[QueryName, ...]
    cause: Cause | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Check a description if `check`, stop the queries in `stop`, then start the description.

    `create`: whether to create missing parts of its target. Only a committed description that hasn't run yet
    creates them. If parts disappear later, somebody removed them.
    """

    address: Address
    description: Description
    stop: tuple[QueryName, ...]
    check: bool
    create: bool = True
    cause: Cause = field(default=COMMITTED_CHANGE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Record the description as one that has run, which the query can fall back to."""

    address: Address
    description: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget the accepted description of an address that is neither wanted nor running."""

    address: Address


Command = Stop | Switch | Accept | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQuery:
    """The description that a gate runs in place of the committed one.

    - `description`: None if the query isn't started.
    - `condition`: the condition to report if there is no description and the query doesn't run.
    - `check`: whether the description is checked before it starts.
    - `stop`: why the query is stopped, if it is and runs; takes precedence over `description`.
    - `restart`: why the query starts once it isn't held any more, if it was stopped.
    - `beside`: whether the committed description runs meanwhile, beside the former one.
    - `reason`: what the query waits for; "" for a canary that has failed.
    """

    description: Description | None = None
    condition: Condition = "starting"
    check: bool = True
    stop: Cause | None = None
    restart: Cause | None = None
    beside: bool = False
    reason: str = ""

    @property
    def starts_nothing(self) -> bool:
        return self.description is None or self.stop is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next command (or None), the new memory, and the condition and run to report.

    - `hold`: the hold of a gate on the query.
    - `is_postponed`: whether a job must end first, so that the memory doesn't change yet.
    - `why`: why the query doesn't start although it should; None if nothing else is in its way.
    """

    command: Command | None
    memory: Memory
    condition: Condition
    run: QueryReport | None
    hold: HeldQuery | None = None
    is_postponed: bool = False
    why: str | None = None


def key_of(description: Description) -> Key:
    """Return the key of a description.

    The key has the id, which the digest leaves out. If an address passes to another resource, the past
    attempts of the former resource don't count for it.
    """
    return (description.id, description.generation, description.digest)
