"""What runners observe: of their queries, of themselves, and of the last hour, minute by minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.cause import Cause, CauseKind
from mzplan.model.diagnostics import ProblemKind
from mzplan.model.losses import Loss
from mzplan.model.measures import Measure, as_instant, in_bytes, measure, measure_of_state
from mzplan.model.stored import (
    KEY,
    SPARSE,
    FromMinusOne,
    InstanceName,
    Instant,
)
from mzplan.model.tasks import TaskOutcome

DIGITS = 3  # of a measure, after the point


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The releases that a runner is made of: `kafka` is that of Spark's connector for it."""

    mzplan: str
    spark: str
    delta: str
    kafka: str

    def __str__(self) -> str:
        return f"Spark {self.spark} and Delta {self.delta}"

    def stores_as(self, other: Versions) -> bool:
        """Whether both write a checkpoint with the same Spark and Delta."""
        return (self.spark, self.delta, self.kafka) == (other.spark, other.delta, other.kafka)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a QueryReport and an Observation say in the same words.

    - `step`: the number of the last finished micro-batch; -1 before the first one.
    - `input_rows_per_second`, `processed_rows_per_second`: of the last micro-batch.
    - `left_out`: malformed records that this run has skipped or kept aside (`on_error`).
    - `resumed`: where this run has gone on: `step`, the last one before it, and `position`, Spark's entry in
      the offset log after that; None of one that has begun anew. `run_rows`: rows since.
    - `written_with`: with what its checkpoint was last written, where this run has others and no step yet.
    - `tasks_done`: the newest tasks of its generation that are done.
    - `started_because`: why this run was started; None where another runner has started it.
    - `batch_seconds`: how long the last micro-batch of this run has taken. `latency_seconds`: how long the
      oldest record of it was on its way when it ended (docs/metrics.md); None where that is
      not known.
    - `state_rows`, `state_bytes`: how much state the query keeps after its last micro-batch.
      `watermark_timestamp_seconds`: its watermark, in seconds since the epoch; None before a first one.
      `late_rows`: rows that this run has dropped because they came behind the watermark. All of them are None
      of a query that keeps no state, and of a run without a micro-batch.
    """

    step: FromMinusOne = -1
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    left_out: int = 0
    resumed: Mapping[str, Any] | None = None
    run_rows: int | None = None
    written_with: Versions | None = field(default=None, metadata=SPARSE)
    tasks_done: tuple[TaskOutcome, ...] = field(default=(), metadata=SPARSE)
    started_because: Cause | None = field(default=None, metadata=SPARSE)
    batch_seconds: float | None = field(
        default=None, metadata=measure("Batch took", "What the last micro-batch has taken.")
    )
    latency_seconds: float | None = field(
        default=None,
        metadata=measure(
            "Latency", "How long the oldest record of the last micro-batch was on its way, where known."
        ),
    )
    state_rows: int | None = field(
        default=None, metadata=measure_of_state("State rows", "Rows in the state of a stateful query.")
    )
    state_bytes: int | None = field(
        default=None,
        metadata=measure_of_state("State size", "Size of the state of a stateful query.", in_bytes),
    )
    watermark_timestamp_seconds: Instant | None = field(
        default=None,
        metadata=measure_of_state(
            "Watermark", "The watermark of a stateful query.", as_instant, text_name="watermark"
        ),
    )
    late_rows: int | None = field(
        default=None,
        metadata=measure_of_state("Late rows", "Rows behind the watermark that the run has dropped."),
    )

    def longest(self, since: float) -> float:
        """Return the seconds of the last micro-batch, or `since`, those since it ended, if that is more."""
        return max(since, self.batch_seconds or 0.0)


MEASURES: Mapping[str, Measure] = {
    fact.name: fact.metadata["measure"] for fact in fields(RunFacts) if "measure" in fact.metadata
}


def facts_of(run: RunFacts) -> dict[str, Any]:
    """The fields of RunFacts, with measures as exact as they are stored."""
    facts = {fact.name: getattr(run, fact.name) for fact in fields(RunFacts)}
    return facts | {name: round(facts[name], DIGITS) for name in MEASURES if facts[name] is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a canary ended, as its runner has decided once and for all. `condition`, `reason` and `code` are
    of a canary that has not passed: rejected before anything was stopped, or failed."""

    serial: int
    passed: bool
    condition: Literal["rejected", "failed"] = "failed"
    reason: str = ""
    code: str = ""
    kind: ProblemKind = field(default="", metadata=SPARSE)


Condition = Literal["running", "degraded", "starting", "paused", "rejected", "failed", "stopped"]


LagUnit = Literal["records", "rows", "steps", "bytes"]


PastStep = tuple[int, int | None, int | None]  # its number, when (seconds since the epoch), and its rows


Awaited = Literal["waiting for Spark", "to be started", "in the first batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a runner has counted of a query since it began to lead, over all of its runs: they never go back,
    and another runner begins at 0. `batches`: micro-batches that have ended. `rows`: those that they have
    written to the collection (source) or the target (sink), where that is known. `restarts`: starts but for
    the first. `retries`: attempts after one that has failed. `starts`: all of them, by cause."""

    rows: int = 0
    batches: int = 0
    restarts: int = 0
    retries: int = 0
    starts: Mapping[CauseKind, int] = field(default_factory=dict, compare=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(RunFacts):
    """One streaming query, as its runner observes it: what is known of its run (RunFacts), and besides:

    - `digest`, `generation`: of the description that runs, or ran last. `wanted_digest`, `wanted_generation`:
      of the committed one that the runner last tried to reach. They differ while a change is pending, was
      rejected, or has failed.
    - `query_id`, `run_id`: Spark's ids of the query and of this run; None before the first start.
    - `lag`: what of the upstream is not read yet, as a number of `lag_unit`; None where that is unknown. Of a
      query that does not run: what waits for it.
    - `backlog`: what the upstream says of what waits, by name: `records`; `steps` that are durable, and the
      `rows` in them; of a log that it keeps for the query `lag_bytes` still to be read and `retained_bytes`
      kept. None for an upstream that says nothing.
    - `total_rows`: of all its steps: written to the collection (source) or the target (sink). `last_rows`,
      `last_batch_at` (seconds since the epoch): of the last step that was recorded.
    - `last_steps`: that one and a few before it, the newest first.
    - `warning`: why a running query needs attention.
    - `error`, `error_code`, `error_kind`: why the last attempt failed or was rejected. `failures`: how many
      attempts have failed in a row; `retry_at` (seconds since the epoch) when the next is due, if ever.
    - `at_fault`: the connection that does not answer, or refuses, while the query needs it; `fault` says how;
      `fault_fix` what mends it, where a server has answered; `fault_since` (seconds since the epoch) when
      that was first seen.
    - `quiet_since`: seconds since the Unix epoch. Set while one micro-batch takes longer than a minute: the
      time when the one before it ended.
    - `upstream`: the identity of what the query reads (for Kafka: cluster, topic and number of partitions).
    - `loss`: what a new generation of a source could not read again now, where its runner looks for that.
    - `held`: what the query waits for, in words: a canary (meanwhile its last accepted description runs), or
      the runner of another instance (it starts here once that one has stopped it).
    """

    address: Address = field(metadata=KEY)
    generation: int
    digest: str
    wanted_digest: str
    wanted_generation: int
    condition: Condition
    query_id: str | None = None
    run_id: str | None = None
    lag: int | None = None
    lag_unit: LagUnit | None = None
    backlog: Mapping[str, int] | None = None
    warning: str | None = None
    quiet_since: float | None = None
    error: str | None = None
    error_code: str | None = None
    error_kind: ProblemKind = field(default="", metadata=SPARSE)
    failures: int = 0
    upstream: Mapping[str, Any] | None = None
    held: str | None = None
    total_rows: int | None = None
    last_rows: int | None = None
    last_batch_at: float | None = None
    last_steps: tuple[PastStep, ...] = field(default=(), metadata=SPARSE)
    retry_at: float | None = None
    at_fault: Address | None = None
    fault: str | None = None
    fault_fix: str | None = field(default=None, metadata=SPARSE)
    fault_since: float | None = field(default=None, metadata=SPARSE)
    counters: Counters | None = field(default=None, metadata=SPARSE)

    @property
    def health(self) -> Condition:
        """Its condition, but `degraded` where it runs, and a connection that it needs is at fault. That is
        not stored: what follows what was committed goes by whether it runs."""
        is_at_fault = self.at_fault is not None and not self.held  # what is held runs on as before
        return "degraded" if self.condition == "running" and is_at_fault else self.condition

    loss: Loss | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the runner of an instance observes. `serial` is the newest state serial it has taken in;
    `heartbeat` is seconds since the Unix epoch, UTC; `secrets` are digests of the values that queries run
    with, by reference, and `rotated` the references that had another value at the runner's last look;
    `canaries` are verdicts on those that went first;
    `foreign` are queries in its application that it has not started, by name. `secret_values_in_use` counts
    the messages of commands whose secret values the runner uses. `opening_since`: since when its Spark starts
    (seconds since the epoch), None once it runs; `opened_in`: how many seconds that has taken. `versions`:
    of the runner, None until its Spark runs, and of one that has none. `replaced`: the release that was
    installed in the place of that while it runs; "" for none. `ended`: why this runner has ended, as a
    sentence; "" while it runs, and if it was stopped. `cores`: how many the queries share, if these don't
    suffice; then `slowest` says for how many seconds the slowest query keeps its rows waiting."""

    instance: InstanceName
    epoch: int
    heartbeat: float
    serial: FromMinusOne
    observations: Mapping[Address, Observation] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    rotated: tuple[str, ...] = field(default=(), metadata=SPARSE)
    canaries: Mapping[Address, Verdict] = field(default_factory=dict, metadata=SPARSE)
    foreign: tuple[str, ...] = field(default=(), metadata=SPARSE)
    secret_values_in_use: int = field(default=0, metadata=SPARSE)
    opening_since: float | None = field(default=None, metadata=SPARSE)
    opened_in: float | None = field(default=None, metadata=SPARSE)
    versions: Versions | None = field(default=None, metadata=SPARSE)
    replaced: str = field(default="", metadata=SPARSE)
    ended: str = field(default="", metadata=SPARSE)
    cores: int = field(default=0, metadata=SPARSE)
    slowest: float | None = field(default=None, metadata=SPARSE)

    def awaits(self, address: Address) -> Awaited:
        """What a query that is starting has come to."""
        if self.opening_since is not None:
            return "waiting for Spark"
        seen = self.observations.get(address)
        if seen is None or seen.run_id is None:
            return "to be started"
        runs = (seen.generation, seen.digest) == (seen.wanted_generation, seen.wanted_digest)
        return "in the first batch" if runs else "to be started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which runner leads an instance. `heartbeat` in seconds since the epoch, `ttl` in seconds.

    A lease has lapsed when `heartbeat + ttl` is past, when it was released, or when its owner is known
    to be dead (same host and `pid_space`, no such process). `pid_space` says where the pid means something:
    a boot of a machine and a namespace of pids; "" where the system has none.
    Whoever takes it over has a higher `epoch`, the fencing token: one sequence for all instances of the
    project.
    """

    instance: InstanceName
    epoch: int
    owner: str
    host: str
    pid: int
    pid_started: float
    heartbeat: float
    ttl: float
    released: bool = False
    pid_space: str = ""


SAMPLED_EVERY = 60.0  # seconds between two samples
SAMPLES_KEPT = 60  # samples of each query
Sample = tuple[int, float, int | None, Condition]  # seconds since the epoch; rows/s; lag in the query's unit
Recent = Mapping[Address, tuple[Sample, ...]]  # the oldest first


def sampled(recent: Recent, observations: Mapping[Address, Observation], now: float) -> Recent:
    """With one more sample of each query, at `now` in seconds since the epoch; those that are gone are
    forgotten, as is what is older than an hour."""
    oldest = now - SAMPLED_EVERY * SAMPLES_KEPT
    return {
        address: (
            *(sample for sample in recent.get(address, ())[1 - SAMPLES_KEPT :] if oldest <= sample[0] < now),
            (int(now), seen.input_rows_per_second, seen.lag, seen.condition),
        )
        for address, seen in observations.items()
    }
