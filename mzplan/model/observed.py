"""What runners observe: of their queries, of themselves, and samples of the last hour."""

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
from mzplan.model.tasks import TaskOutcome, TaskProgress
from mzplan.model.violations import ViolationCount

DIGITS = 3  # of a measure, after the decimal point


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions of a runner's components; `kafka` is Spark's Kafka connector."""

    mzplan: str
    spark: str
    delta: str
    kafka: str

    def __str__(self) -> str:
        return f"Spark {self.spark} and Delta {self.delta}"

    def stores_as(self, other: Versions) -> bool:
        """Whether both write checkpoints with the same Spark, Delta and Kafka connector."""
        return (self.spark, self.delta, self.kafka) == (other.spark, other.delta, other.kafka)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The fields that a QueryReport and an Observation share.

    - `step`: the number of the last finished micro-batch; -1 before the first one.
    - `input_rows_per_second`, `processed_rows_per_second`: of the last micro-batch.
    - `left_out`: malformed records that this run has skipped or set aside (`on_error`).
    - `resumed`: where this run resumed. `step` is the last step before the run, and `position` is Spark's
      next entry in the offset log. None if the run started from the beginning.
    - `run_rows`: how many rows this run has read; None if not all of its steps are counted yet.
    - `function`: the package of the query's function, and the version that runs; "" for none.
    - `function_before`: the version that the last apply accepted, if another one runs.
    - `written_with`: the versions that last wrote the checkpoint, if this run has other versions and no step
      yet.
    - `tasks_done`: the newest finished tasks of the query's generation.
    - `started_because`: why this run was started; None if another runner started it.
    - `refreshed`: how the last step of a current view has computed its rows, as a clause.
    - `violations`: how often rows have violated each of the query's expectations (`expect`), by name.
    - `batch_seconds`: the duration of this run's last micro-batch.
    - `latency_seconds`: the age of that micro-batch's oldest record when the micro-batch ended
      (docs/metrics.md); None if unknown.
    - `state_rows`, `state_bytes`: the size of the query's state after its last micro-batch.
    - `watermark_timestamp_seconds`: the watermark, in seconds since the epoch; None before the first one.
    - `late_rows`: rows behind the watermark that this run has dropped.
    - `null_time_rows`: rows that this run has read with NULL in a column with a watermark.

    State, watermark and these rows are None for a stateless query, and before the run's first micro-batch.
    """

    step: FromMinusOne = -1
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    left_out: int = 0
    resumed: Mapping[str, Any] | None = None
    run_rows: int | None = None
    function: str = field(default="", metadata=SPARSE)
    function_before: str = field(default="", metadata=SPARSE)
    written_with: Versions | None = field(default=None, metadata=SPARSE)
    tasks_done: tuple[TaskOutcome, ...] = field(default=(), metadata=SPARSE)
    started_because: Cause | None = field(default=None, metadata=SPARSE)
    refreshed: str | None = field(default=None, metadata=SPARSE)
    violations: Mapping[str, ViolationCount] = field(default_factory=dict, metadata=SPARSE)
    batch_seconds: float | None = field(
        default=None, metadata=measure("Batch duration", "Duration of the last micro-batch.")
    )
    latency_seconds: float | None = field(
        default=None,
        metadata=measure(
            "Latency", "Age of the oldest record of the last micro-batch when it ended, if known."
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
        metadata=measure_of_state("Late rows", "Rows behind the watermark that the run dropped."),
    )
    null_time_rows: int | None = field(
        default=None,
        metadata=measure_of_state(
            "Rows with NULL as event time", "Rows with NULL in a column with a watermark that the run read."
        ),
    )

    def longest(self, since: float) -> float:
        """Return the seconds of the last micro-batch, or the seconds since it ended if that is more."""
        return max(since, self.batch_seconds or 0.0)


MEASURES: Mapping[str, Measure] = {
    fact.name: fact.metadata["measure"] for fact in fields(RunFacts) if "measure" in fact.metadata
}


def facts_of(run: RunFacts) -> dict[str, Any]:
    """Return the fields of RunFacts, with measures rounded as they are stored."""
    facts = {fact.name: getattr(run, fact.name) for fact in fields(RunFacts)}
    return facts | {name: round(facts[name], DIGITS) for name in MEASURES if facts[name] is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryVerdict:
    """How a canary ended. The runner decides it once.

    `condition`, `reason` and `code` describe a canary that didn't pass: it failed, or it was rejected before
    any query was stopped.
    """

    serial: int
    passed: bool
    condition: Literal["rejected", "failed"] = "failed"
    reason: str = ""
    code: str = ""
    kind: ProblemKind = field(default="", metadata=SPARSE)


Condition = Literal["running", "degraded", "starting", "paused", "rejected", "failed", "stopped"]


LagUnit = Literal["records", "rows", "steps", "bytes"]


PastStep = tuple[int, int | None, int | None]  # step number, time in seconds since the epoch, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A runner's counts for a query since the runner began to lead, over all runs of the query.

    They never decrease. Another runner starts again at 0.

    - `batches`: finished micro-batches.
    - `rows`: the rows that they wrote to the collection (source) or the target (sink), if known.
    - `restarts`: all starts except the first. `retries`: attempts after a failed one.
    - `starts`: all starts, by cause.
    """

    rows: int = 0
    batches: int = 0
    restarts: int = 0
    retries: int = 0
    starts: Mapping[CauseKind, int] = field(default_factory=dict, compare=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(RunFacts):
    """One streaming query, as its runner observes it.

    - `digest`, `generation`: of the description that runs, or ran last.
    - `wanted_digest`, `wanted_generation`: of the committed description that the runner last tried to run.
      They differ from the first two while a change is pending, was rejected, or has failed.
    - `query_id`, `run_id`: Spark's ids of the query and of this run; None before the first start.
    - `lag`: how much of the upstream isn't read yet, in `lag_unit`; None if unknown. Also of a stopped query.
    - `backlog`: the unread data that the upstream reports, by name: `records`; or durable `steps` and their
      `rows`; or, for a replication slot, the unread `lag_bytes` and all `retained_bytes`. None if the
      upstream reports nothing.
    - `total_rows`: how many rows all steps have written to the collection (source) or the target (sink).
    - `last_rows`, `last_batch_at` (seconds since the epoch): of the last recorded step.
    - `last_steps`: the last step and a few before it, newest first.
    - `since`: the oldest step of its collection that has not expired, and when it was written (seconds since
      the epoch).
    - `warning`: why a running query needs attention.
    - `error`, `error_code`, `error_kind`: why the last attempt failed or was rejected.
    - `failures`: how many attempts in a row have failed. `retry_at` (seconds since the epoch): when the next
      one is due; None if there is none.
    - `at_fault`: the connection that doesn't answer, or refuses, while the query needs it. `fault` describes
      the fault, `fault_fix` is its fix, if a server answered. `fault_since` (seconds since the epoch): when
      it was first seen.
    - `quiet_since`: when the previous micro-batch ended (seconds since the epoch), while the current one
      takes longer than a minute; else None.
    - `upstream`: the identity of the query's upstream (for Kafka: cluster, topic and number of partitions).
    - `loss`: the records that a new generation of the source could no longer read; None if there are none, or
      if the runner doesn't look for losses of this source.
    - `foreign_change`: how another writer last changed rows of the query's collection; None if it didn't.
    - `held`: what the query waits for, in words: a canary (meanwhile the last accepted description runs), the
      runner of another instance that still has to stop the query, a new generation, or a first copy.
    - `waits`: why the runner takes no step for the query now, in words, unless `held` says so.
    - `task`: the work that the start under way does first.
    - `completed`: whether the query is stopped because it has read what was there
      (`trigger: available-now`). The facts are those of its last run.
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
    since: tuple[int, float | None] | None = field(default=None, metadata=SPARSE)
    retry_at: float | None = None
    at_fault: Address | None = None
    fault: str | None = None
    fault_fix: str | None = field(default=None, metadata=SPARSE)
    fault_since: float | None = field(default=None, metadata=SPARSE)
    counters: Counters | None = field(default=None, metadata=SPARSE)
    task: TaskProgress | None = field(default=None, metadata=SPARSE)
    waits: str | None = field(default=None, metadata=SPARSE)
    completed: bool = field(default=False, metadata=SPARSE)

    @property
    def runs_or_completed(self) -> bool:
        """Whether the query does what its trigger asks for: it runs, or has read what was there."""
        return self.condition == "running" or self.completed

    @property
    def health(self) -> Condition:
        """The condition; `degraded` if the query runs while a connection that it needs is at fault.

        A Status stores only `condition`, so `apply` takes a degraded query for a running one.
        """
        is_at_fault = self.at_fault is not None and not self.held  # a held query keeps running as before
        return "degraded" if self.condition == "running" and is_at_fault else self.condition

    loss: Loss | None = field(default=None, metadata=SPARSE)
    foreign_change: str | None = field(default=None, metadata=SPARSE)


JobKind = Literal[
    "start",  # checks, stops and starts a query
    "task",  # a start that may take hours: it does one-off tasks or migrates rows first
    "append",
    "upstream",  # checks the upstream or target of a running query
    "connection",  # checks a connection
    "lag",  # measures a backlog
    "copy",  # measures the first copy of a collection
    "secret",  # reads a secret
    "survey",  # asks which steps a collection holds
    "maintenance",  # expires steps of a collection
    "compaction",  # merges small files of a target
    "release",  # removes objects of a dropped query from its server
    "removal",  # removes unclaimed storage
    "check",  # checks a query of a proposal
    "proposal",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job in the background of a runner.

    - `key`: its subject, such as the address of a query.
    - `since`: when it started, or began to wait for a thread (seconds since the epoch).
    - `hangs`: whether it has run beyond its time limit, so that it no longer delays others of its kind.
    """

    kind: JobKind
    key: str
    since: float
    is_running: bool
    hangs: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the runner of an instance observes.

    - `heartbeat`: seconds since the epoch.
    - `serial`: the newest state serial that the runner has read; -1 before the first.
    - `secrets`: digests of the secret values that queries run with, by reference.
    - `rotated`: references whose secret had another value when the runner last looked.
    - `canaries`: the verdicts on the canaries.
    - `foreign`: the names of queries in the application that the runner hasn't started.
    - `secret_values_in_use`: how many commands have sent secret values that the runner now uses.
    - `opening_since`: when Spark began to start (seconds since the epoch); None once it runs.
    - `opened_in`: how many seconds Spark took to start.
    - `versions`: of the runner; None until Spark runs, and for a runner without Spark.
    - `replaced`: the release that was installed over the runner's own while it runs; "" if none was.
    - `ended`: why this runner ended, as a sentence; "" while it runs, and if it was stopped.
    - `caught_up_at`: when this runner ended because its queries had caught up (`run --until-caught-up`), in
      seconds since the epoch. Queries that had failed haven't.
    - `cores`: how many cores the queries share, if there are too few cores; else 0.
    - `slowest`: if there are too few cores, for how many seconds the slowest query keeps its rows waiting.
    - `jobs`: the background jobs that had run or waited for some seconds.
    - `warehouse`: where the queries' storage is, as `PATH on HOST`; "" for an object store.
    """

    instance: InstanceName
    epoch: int
    heartbeat: float
    serial: FromMinusOne
    observations: Mapping[Address, Observation] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    rotated: tuple[str, ...] = field(default=(), metadata=SPARSE)
    canaries: Mapping[Address, CanaryVerdict] = field(default_factory=dict, metadata=SPARSE)
    foreign: tuple[str, ...] = field(default=(), metadata=SPARSE)
    secret_values_in_use: int = field(default=0, metadata=SPARSE)
    opening_since: float | None = field(default=None, metadata=SPARSE)
    opened_in: float | None = field(default=None, metadata=SPARSE)
    versions: Versions | None = field(default=None, metadata=SPARSE)
    replaced: str = field(default="", metadata=SPARSE)
    ended: str = field(default="", metadata=SPARSE)
    caught_up_at: float | None = field(default=None, metadata=SPARSE)
    cores: int = field(default=0, metadata=SPARSE)
    slowest: float | None = field(default=None, metadata=SPARSE)
    jobs: tuple[JobReport, ...] = field(default=(), metadata=SPARSE)
    warehouse: str = field(default="", metadata=SPARSE)

    def start_stage(self, address: Address) -> str:
        """Return the stage that a starting query has reached, such as `doing its replay of step 3`."""
        if self.opening_since is not None:
            return "waiting for Spark"
        seen = self.observations.get(address)
        if seen is not None and seen.task is not None:
            return f"doing its {seen.task.title}"
        if seen is not None and seen.waits is not None:
            return seen.waits
        if seen is None or seen.run_id is None:
            return "to be started"
        runs = (seen.generation, seen.digest) == (seen.wanted_generation, seen.wanted_digest)
        return "in the first batch" if runs else "to be started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which runner leads an instance.

    A lease has lapsed if `heartbeat + ttl` is past, if it was released, or if its owner is known to be dead
    (same host and `pid_space`, no such process).

    - `heartbeat`: seconds since the epoch. `ttl`: seconds.
    - `epoch`: the fencing token. A runner that takes the lease over gets a higher one. All instances of a
      project share one sequence.
    - `pid_space`: where `pid` is valid: one boot of a machine and one pid namespace; "" if the system has
      none.
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


SAMPLE_INTERVAL = 60.0  # seconds between two samples
MAX_SAMPLES = 60  # per query
Sample = tuple[int, float, int | None, Condition]  # seconds since the epoch, rows/s, lag, condition
Recent = Mapping[Address, tuple[Sample, ...]]  # oldest first


def with_samples(recent: Recent, observations: Mapping[Address, Observation], now: float) -> Recent:
    """Return the samples with a new one for each query, at `now` (seconds since the epoch).

    Drops queries that are no longer observed, and samples older than an hour.
    """
    oldest = now - SAMPLE_INTERVAL * MAX_SAMPLES
    return {
        address: (
            *(sample for sample in recent.get(address, ())[1 - MAX_SAMPLES :] if oldest <= sample[0] < now),
            (int(now), seen.input_rows_per_second, seen.lag, seen.condition),
        )
        for address, seen in observations.items()
    }
