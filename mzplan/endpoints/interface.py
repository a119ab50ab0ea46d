"""The two connector interfaces (seed 003): where steps of records come from, and where they go.

Everything here is single-threaded and deterministic: each call does its work and signals before it returns;
one endpoint is used by one thread. Endpoints are cheap to make: no connection before the first call, no
import that takes long. What only some have are protocols of their own, which `isinstance` asks for: Closes,
CountsRows, JoinsSteps, PartedInputEndpoint, HasWritten, ParallelOutputFactory, Probes, ReachesServers.

Texts in quotation marks are the seed's contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Step: TypeAlias = int
"""The number of a step: "type Step = u64". Steps of an endpoint count up from 0, without gaps."""

MAX_STEP: Step = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an output records of a step: how many rows, and the text of their ContentHash (None: not known).
    One that this version does not know is not compared."""

    rows: int
    digest: str | None = None


class StepError(ValueError):
    """A step was asked for that the endpoint does not have, or calls came in an order that means nothing.
    The message is for people: it names the step and what there is."""


def checked_step(step: Step) -> Step:
    """The step, if it is an unsigned integer of 64 bits. Raises StepError."""
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MAX_STEP:
        raise StepError(f"{step!r} is no step: steps are whole numbers from 0 to 2^64 - 1")
    return step


@runtime_checkable
class InputConsumer(Protocol):
    """Takes the records of a step that is read."""

    def push(self, batch: RecordBatch) -> None:
        """The next records of the step."""

    def eoi(self) -> None:
        """The step is complete: "signals completion by calling `consumer.eoi()`"."""

    def committed(self) -> None:
        """The step is durable: "When the step has been durably recorded, the endpoint should also call the
        (new) function `committed()` on `consumer`". From now on, reading it gives the same records again."""


@runtime_checkable
class DurableInputEndpoint(Protocol):
    """An input whose records come in steps that can be read again."""

    def read(self, step: Step, consumer: InputConsumer) -> None:
        """ "Requests that the endpoint retrieves `step`, feeds it to `consumer`, and then signals completion
        by calling `consumer.eoi()`. […] The requested `step` must either be in the range returned by
        `steps()` or just beyond it. In the latter case, the endpoint should wait until `commit()` is called
        before it signals completion."

        For a step in `steps()`: pushes all of it, then `eoi()`, then `committed()`; always the same records
        in the same order (how they are cut into batches may differ). For the step just beyond: pushes what
        there is now (perhaps nothing) and returns without a signal; `commit` goes on from there. Reading it
        again before that begins anew, with what there is then, and forgets the consumer before.

        Raises StepError for any other step, and whatever went wrong otherwise; nothing is durable then.
        """

    def commit(self, step: Step) -> None:
        """ "Requests that the endpoint commits `step`, which must be the step previously passed to `read()`."

        Makes the step durable, as it was pushed to the consumer of that `read` (an endpoint that learns of
        more records of it at this moment pushes those first), then calls `eoi()` and `committed()` on it. A
        step that is durable already stays as it is, and nobody is called: that is no error, for a caller that
        crashed does not know. Raises StepError for any other step than these two.
        """

    def steps(self) -> range:
        """ "The range of steps that the endpoint has available without blocking": durable, not expired,
        without gaps. `range(n, n)` when there are none; n is then the step that comes next. It never goes
        back."""

    def expire(self, step: Step) -> None:
        """ "Notifies the endpoint that steps less than `step` aren't needed anymore. It may optionally
        discard them." Expiring again, or less than before, changes nothing. Raises StepError for more than
        all."""


@runtime_checkable
class PartedInputEndpoint(DurableInputEndpoint, Protocol):
    """An input whose steps may be too large for one reader, or for memory: our addition to the seed's
    interface. An endpoint that has these methods as well is read by them: `offers`, then `commit`, without a
    `read`; then each part by a task of its own, with an endpoint of its own, one batch at a time."""

    def offers(self, step: Step) -> bool:
        """Whether the step just beyond has records now. It may then be committed."""

    def parts(self, step: Step) -> Sequence[Any]:
        """The parts of a durable step, each of which can be pickled; together they are what `read` pushes."""

    def batches(self, part: Any) -> Iterator[RecordBatch]:
        """The records of a part, a batch at a time."""


@runtime_checkable
class CountsRows(DurableInputEndpoint, Protocol):
    """An input that knows how many records its durable steps have, without reading them: for `mzplan status`.
    Our addition to the seed's interface."""

    def rows(self, steps: range) -> int:
        """The records of these steps, all in `steps()`. Raises StepError."""


@runtime_checkable
class JoinsSteps(DurableInputEndpoint, Protocol):
    """An input that bounds how many of the durable steps that wait one micro-batch reads. Our addition to the
    seed's interface."""

    def joined(self, steps: range) -> range:
        """The first of these steps, all in `steps()`: as many as are to be read together, at least one."""


@runtime_checkable
class DurableInputFactory(Protocol):
    """Makes endpoints: "Just like `InputFactory`"."""

    def name(self) -> str:
        """The name of the transport, as `sqlite`: for people."""

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        """A new endpoint. `name` tells it from others of the same upstream (a source's id and generation),
        and equal configurations under one name see the same steps, in this process or another. What `config`
        holds is in docs/internals/endpoints.md. Raises ValueError for one that it can't use."""


@runtime_checkable
class OutputEndpoint(Protocol):
    """An output that knows which step it is writing."""

    def start_step(self, step: Step) -> None:
        """ "Notifies the output endpoint that data subsequently written by `push_buffer` belong to the given
        `step`. If data for the given step has been written before, the endpoint should discard it up to the
        previously written length. Optionally, the endpoint may compare the previous version to the new
        version and log a warning if it differs. Beyond the previously written length, the endpoint should
        append to it if `step` is the last step in the output, or log a warning if the output already
        contains steps beyond `step`."

        `mzplan.endpoints.replay.StepReplay` is that rule. A step that was started and not finished is given
        up: of a transactional output, nothing of it was written.
        """

    def push_buffer(self, batch: RecordBatch) -> None:
        """The next records of the step, in an order that is the same whenever the step is pushed again.
        Raises StepError before `start_step`."""

    def finish_step(self) -> None:
        """All of the step has been pushed. When this returns, it is durable in the output.

        Our one addition to the seed's interface: an output with transactions must know where a step ends, and
        an endpoint that learns of it only by the next `start_step` would hold back the last step. Raises
        StepError when no step is started."""

    def expire_step(self, step: Step) -> None:
        """ "Notifies the output endpoint that it no longer needs to track the positions of steps before
        `step`. It may optionally discard that tracking metadata." The records stay. Idempotent; starting a
        step that was expired is a StepError, for its length is not known any more."""


@runtime_checkable
class HasWritten(OutputEndpoint, Protocol):
    """An output that says what it has recorded of its steps: `mzplan verify` compares that with the
    collection."""

    def written(self, step: Step) -> Written | None:
        """Of one step; None where nothing is known of it."""


@runtime_checkable
class OutputFactory(Protocol):
    """Makes output endpoints."""

    def name(self) -> str:
        """The name of the transport: for people."""

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        """A new endpoint. Equal configurations under one name are the same output."""


@runtime_checkable
class ParallelOutputFactory(OutputFactory, Protocol):
    """One whose endpoints are used by so many tasks at once, each with an endpoint of its own under the name
    `NAME/0`, `NAME/1`, …: outputs apart, each with its own steps."""

    parallelism: int


@runtime_checkable
class Closes(Protocol):
    """An endpoint that holds something (a connection, a file), and learns when nobody uses it any more.
    Correctness must not depend on that, for a process may be killed."""

    def close(self) -> None:
        """Let go of it."""


@runtime_checkable
class Probes(Protocol):
    """A connector that can look whether it would work, before anything starts."""

    def probe(self, kind: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Change nothing, and take at most some seconds. Raises an exception whose message is for people.
        Of a source it may return the identity of its upstream, a flat mapping."""


@runtime_checkable
class ReachesServers(Protocol):
    """A connector that can say where the secrets of its connections go. Without that, they go only with a
    connection that is committed exactly so, or that a runner's policy lets go anywhere."""

    def servers(self, connection: Mapping[str, Any]) -> Sequence[str]:
        """The servers that a connection reaches, as `host:port`; empty for one that stays on its machine.
        `connection` is its body; secrets are references there. Reaches nothing."""
