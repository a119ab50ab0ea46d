"""The two connector interfaces of seed 003: inputs read steps of records, outputs write them.

Calls are synchronous and deterministic: a call finishes its work and sends its signals before it returns.
Only one thread uses an endpoint. Endpoints are cheap to create: they don't connect before the first call, and
don't import slow modules. Optional abilities are separate protocols, checked with `isinstance`: the Supports…
protocols, PartedInputEndpoint and ParallelOutputFactory.

Texts in quotation marks are quoted from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Step: TypeAlias = int
"""The number of a step: "type Step = u64". An endpoint's steps count up from 0, without gaps."""

MAX_STEP: Step = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An output's record of a step.

    `rows`: number of rows.
    `digest`: text of the rows' ContentHash, or None if unknown; an unknown hash format isn't compared.
    """

    rows: int
    digest: str | None = None


class StepError(ValueError):
    """The endpoint doesn't have the requested step, or the call isn't allowed now.

    The message is for people. It names the step and the available steps.
    """


def checked_step(step: Step) -> Step:
    """Return the step if it is an unsigned 64-bit integer. Raises StepError otherwise."""
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
        raise StepError(f"{step!r} is no step: steps are whole numbers from 0 to 2^64 - 1")
    return step


@runtime_checkable
class InputConsumer(Protocol):
    """Receives the records of a step."""

    def push(self, batch: RecordBatch) -> None:
        """Receive the next records of the step."""

    def eoi(self) -> None:
        """Learn that the step is complete: an endpoint "signals completion by calling `consumer.eoi()`"."""

    def committed(self) -> None:
        """Learn that the step is durable. From now on, reading it returns the same records.

        "When the step has been durably recorded, the endpoint should also call the (new) function
        `committed()` on `consumer`".
        """


@runtime_checkable
class DurableInputEndpoint(Protocol):
    """An input whose records come in steps that can be read again."""

    def read(self, step: Step, consumer: InputConsumer) -> None:
        """ "Requests that the endpoint retrieves `step`, feeds it to `consumer`, and then signals completion
        by calling `consumer.eoi()`. […] The requested `step` must either be in the range returned by
        `steps()` or just beyond it. In the latter case, the endpoint should wait until `commit()` is called
        before it signals completion."

        For a step in `steps()`: push all of its records, then call `eoi()`, then `committed()`. The records
        and their order are always the same, but may be split into batches differently.

        For the step just beyond: push the records that are available now, if any, and return without a
        signal; `commit` continues from there. If the same step is read again before the commit, start over
        with the records that are available then, and forget the earlier consumer.

        Raises StepError for any other step. After any error, nothing has become durable.
        """

    def commit(self, step: Step) -> None:
        """ "Requests that the endpoint commits `step`, which must be the step previously passed to `read()`."

        Make the step durable with the records that `read` pushed to the consumer, then call `eoi()` and
        `committed()`. If the endpoint finds more records of the step at this moment, it pushes them first.
        If the step is already durable, nothing changes and no signal is sent: a caller that crashed may not
        know of its commit. Raises StepError for any other step.
        """

    def steps(self) -> range:
        """ "The range of steps that the endpoint has available without blocking".

        These steps are durable and not expired, and no step between them is missing. If there are none,
        returns `range(n, n)`, where n is the next step. Neither bound ever decreases.
        """

    def expire(self, step: Step) -> None:
        """ "Notifies the endpoint that steps less than `step` aren't needed anymore. It may optionally
        discard them."

        Idempotent. Raises StepError if `step` is beyond the end of `steps()`.
        """


@runtime_checkable
class PartedInputEndpoint(DurableInputEndpoint, Protocol):
    """An input whose steps may be too large for one reader or for memory (mzplan's addition).

    The adapter calls `offers`, then `commit`, without a `read`. Then each part is read by its own task,
    with its own endpoint, one batch at a time.
    """

    def offers(self, step: Step) -> bool:
        """Return whether the step just beyond has records now. If so, it may be committed."""

    def parts(self, step: Step) -> Sequence[Any]:
        """Return the parts of a durable step. Together they equal what `read` pushes; each can be pickled."""

    def batches(self, part: Any) -> Iterator[RecordBatch]:
        """Yield the records of a part in batches."""


@runtime_checkable
class SupportsRowCount(DurableInputEndpoint, Protocol):
    """An input that counts the rows of its durable steps without reading them (mzplan's addition).

    `mzplan status` shows the counts.
    """

    def rows(self, steps: range) -> int:
        """Return the number of records in these steps, all in `steps()`. Raises StepError."""


@runtime_checkable
class SupportsJoinedSteps(DurableInputEndpoint, Protocol):
    """An input that limits how many waiting steps one micro-batch reads (mzplan's addition)."""

    def joined(self, steps: range) -> range:
        """Return the leading steps to read together, at least one. `steps` are all in `steps()`."""


@runtime_checkable
class DurableInputFactory(Protocol):
    """Creates endpoints: "Just like `InputFactory`"."""

    def name(self) -> str:
        """Return the name of the transport for people, such as `sqlite`."""

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        """Return a new endpoint.

        `name` distinguishes endpoints of one upstream (a source's id and generation). Endpoints with equal
        names and configurations see the same steps, in any process. docs/internals/endpoints.md lists the
        content of `config`. Raises ValueError if the configuration can't be used.
        """


@runtime_checkable
class OutputEndpoint(Protocol):
    """An output that knows which step it is writing."""

    def start_step(self, step: Step) -> None:
        """ "Notifies the output endpoint that data subsequently written by `push_buffer` belong to the given
        `step`. If data for the given step has been written before, the endpoint should discard it up to the
        previously written length. Optionally, the endpoint may compare the previous version to the new
        version and log a warning if it differs. Beyond the previously written length, the endpoint should
        append to it if `step` is the last step in the output, or log a warning if the output already contains
        steps beyond `step`."

        `mzplan.endpoints.replay.StepReplay` implements this rule. Starting a step abandons an unfinished
        step: a transactional output has written nothing of it.
        """

    def push_buffer(self, batch: RecordBatch) -> None:
        """Write the next records of the step.

        Their order is the same whenever the step is pushed again. Raises StepError before `start_step`.
        """

    def finish_step(self) -> None:
        """Finish the step, whose records have all been pushed. It is durable when this returns.

        The seed doesn't have this method. A transactional output needs it to know where a step ends. Without
        it, only the next `start_step` would tell, and the last step would have to wait. Raises StepError if
        no step is started."""

    def expire_step(self, step: Step) -> None:
        """ "Notifies the output endpoint that it no longer needs to track the positions of steps before
        `step`. It may optionally discard that tracking metadata."

        The records stay. Idempotent. After this, `start_step` raises StepError for an expired step, because
        the step's length is no longer known.
        """


@runtime_checkable
class SupportsWritten(OutputEndpoint, Protocol):
    """An output that reports its record of a step. `mzplan verify` compares it with the collection."""

    def written(self, step: Step) -> Written | None:
        """Return the record of a step, or None if nothing is known about it."""


@runtime_checkable
class OutputFactory(Protocol):
    """Creates output endpoints."""

    def name(self) -> str:
        """Return the name of the transport for people."""

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        """Return a new endpoint. Equal names and configurations mean the same output."""


@runtime_checkable
class ParallelOutputFactory(OutputFactory, Protocol):
    """Creates endpoints for `parallelism` concurrent tasks.

    The tasks' endpoints are named `NAME/0`, `NAME/1`, …. They are separate outputs, each with its own
    steps.
    """

    parallelism: int


@runtime_checkable
class SupportsClose(Protocol):
    """An endpoint that holds a resource, such as a connection or a file, until it is closed.

    Correctness must not depend on `close`, because a process may be killed.
    """

    def close(self) -> None:
        """Release the resource."""


@runtime_checkable
class SupportsProbe(Protocol):
    """A connector that can check whether it would work, before anything starts."""

    def probe(self, kind: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Check within a few seconds that the endpoint is usable, without changing anything.

        On failure, raises an exception with a message that can be shown to the user. For a source, may return
        the identity of its upstream as a flat mapping.
        """


@runtime_checkable
class SupportsServerList(Protocol):
    """A connector that can name the servers to which it sends its connections' secrets.

    Without this protocol, secrets are sent only if exactly this connection is committed, or if the
    runner's policy allows any destination.
    """

    def servers(self, connection: Mapping[str, Any]) -> Sequence[str]:
        """Return the servers that a connection reaches, as `host:port`; empty if it needs none.

        `connection` is the connection's body, in which secrets are references. This call contacts no
        server.
        """
