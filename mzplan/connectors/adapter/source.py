"""Makes a source from any DurableInputEndpoint: of a local source, PostgreSQL, or a plug-in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mzplan.connectors.adapter.config import (
    EndpointUpstream,
    as_error,
    endpoint_config,
    endpoint_name,
    open_endpoint,
    secret_values,
)
from mzplan.connectors.adapter.step_reader import ReaderPlan, data_source
from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import another_upstream, start_over_hint
from mzplan.connectors.frames.types import ddl
from mzplan.endpoints.interface import (
    DurableInputEndpoint,
    DurableInputFactory,
    Step,
    SupportsProbe,
    SupportsRowCount,
)
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import FirstCopy, Loss
from mzplan.schema.columns import CHANGE, POSITION, change_columns
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import decoding, open_folder
from mzplan.warehouse.step_index import StepIndex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@runtime_checkable
class ChecksUpstream(DurableInputEndpoint, Protocol):
    """An endpoint that can check whether its upstream still has the data that its durable steps need."""

    def check(self) -> None:
        """Raise an exception with a message for people if data is missing. Does nothing if that is
        unknown."""


class EndpointSource(SourceConnector):
    """Reads an endpoint's steps.

    - `connector`: the plug-in, whose probe is used; None for mzplan's own endpoints.
    - `position_type`: the type of `_position` if the endpoint's batches already have all columns, including
      mzplan's own.
    """

    position = "STRUCT<step: BIGINT, row: BIGINT>"
    """`row` counts the rows of a step."""

    def __init__(
        self, factory: DurableInputFactory, connector: Any = None, *, position_type: str | None = None
    ):
        self._factory = factory
        self._connector = connector
        self._has_positions = position_type is not None
        self.position = position_type or self.position

    def route(self, query: ResolvedQuery) -> str:
        name = self._factory.name()
        return f"{query.connection.address} ({name})" if query.connection else name

    def probe(self, query: ResolvedQuery) -> Probe:
        """Return the identity that the connector's probe finds, with the type added."""
        type_ = {"type": query.description.type}
        try:
            connector = self._connector
            can_probe = isinstance(connector, SupportsProbe)
            identity = connector.probe("source", endpoint_config(query)) if can_probe else None
        except Exception as problem:
            return Probe(diagnostics=diagnostics_of(problem, query))
        return Probe(upstream={**(identity or {}), **type_})

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        changed_keys = sorted(key for key in recorded if recorded[key] != found.get(key))
        if not changed_keys:
            return None
        differences = ", ".join(
            f"{key} is {found.get(key)!r} instead of {recorded[key]!r}" for key in changed_keys
        )
        return another_upstream(query, "upstream", f"{self.route(query)}: {differences}")

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        step = step_of(position)
        if step is None or query.checkpoint is None:
            return None
        try:
            with open_endpoint(self._factory, query) as endpoint:
                missing = _steps_missing(query, step, endpoint.steps())
                if missing is None and isinstance(endpoint, ChecksUpstream):
                    endpoint.check()
                return missing
        except Exception as problem:
            return diagnostics_of(problem, query)[0]

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the number of steps that were read and have expired."""
        steps_read = _steps_read(former)
        if not steps_read:
            return None
        try:
            with open_endpoint(self._factory, query) as endpoint:
                expired = range(steps_read.start, min(endpoint.steps().start, steps_read.stop))
        except Exception as problem:
            raise MzplanError(diagnostics_of(problem, query)) from None
        if not expired:
            return None
        where = f"{self.route(query)}: steps {expired.start}–{expired.stop - 1} have expired"
        return Loss(lost=len(expired), read=len(steps_read), unit="steps", where=where)

    def backlog(self, query: ResolvedQuery) -> Mapping[str, int] | None:
        """Return how many durable steps Spark hasn't committed yet, and how many rows they have, if known.

        The result is `{"steps": n, "rows": n}`, or None if the endpoint can't be read."""
        if query.checkpoint is None:
            return None
        log = query.checkpoint.log
        try:
            position = log.entry(log.committed())
            with open_endpoint(self._factory, query) as endpoint:
                steps = endpoint.steps()
                first = step_of(position) if position else None
                waiting_steps = range(max(steps.start, steps.start if first is None else first), steps.stop)
                rows = _row_count(endpoint, waiting_steps)
        except Exception:
            return None
        return {"steps": len(waiting_steps), **({"rows": rows} if rows is not None else {})}

    def upstream_end(self, query: ResolvedQuery) -> int:
        """Return the step after the durable ones."""
        try:
            with open_endpoint(self._factory, query) as endpoint:
                return endpoint.steps().stop
        except Exception as problem:
            raise MzplanError(diagnostics_of(problem, query)) from None

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        end = int(checkpoint.first_end() or 0)
        return FirstCopy(read=(step_of(checkpoint.position() or "") or 0,), ends=(end,), unit="step")

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Copy the endpoint's files. The endpoint keeps its name."""
        copy_steps(earlier, later)

    def upstream(self, query: ResolvedQuery) -> EndpointUpstream:
        """Return a reader of the endpoint's own rows."""
        return EndpointUpstream(self._factory, query)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        """Return the stream of steps (see SourceConnector), with `_change` as the last column."""
        assert query.checkpoint is not None, "a stream has a checkpoint"
        log = query.checkpoint.log
        logged_offset = log.entry(log.newest())  # whether its batch is committed or not
        columns = tuple(change_columns(query.columns, query.keys) if query.keys else query.columns)
        plan = ReaderPlan(
            subject=str(query.address),
            name=endpoint_name(query),
            factory=self._factory,
            config=endpoint_config(query),
            columns=columns,
            secrets=secret_values(query),
            resume=step_of(logged_offset) if logged_offset else None,
            has_positions=self._has_positions,
        )
        source_class = data_source(plan)
        spark.dataSource.register(source_class)
        schema = f"{ddl(columns)}, {POSITION} {self.position}"
        if self._has_positions:
            schema = f"{ddl(query.columns)}, {POSITION} {self.position}, {CHANGE} STRING"
        rows = spark.readStream.format(source_class.name()).schema(schema).load()
        return rows.select(*(c for c in rows.columns if c != CHANGE), CHANGE) if query.keys else rows


def copy_steps(earlier: Checkpoint, later: Checkpoint) -> None:
    """Copy an endpoint's files from one checkpoint to another. Raises OSError."""
    source, target = open_folder(earlier.steps), open_folder(later.steps)
    for name in source.names():
        if (data := source.read(name)) is not None:
            target.write(name, data)


_MAX_COUNTED = 200  # steps whose rows are counted


def _row_count(endpoint: DurableInputEndpoint, steps: range) -> int | None:
    """Return the number of rows of durable steps. None if the endpoint doesn't count rows, or there are too
    many steps."""
    if not steps:
        return 0
    if not isinstance(endpoint, SupportsRowCount) or len(steps) > _MAX_COUNTED:
        return None
    return endpoint.rows(steps)


def _steps_missing(query: ResolvedQuery, step: Step, existing: range) -> Diagnostic | None:
    """Return MZ081 if the checkpoint's next step is not among the endpoint's `existing` steps."""
    if existing.start <= step <= existing.stop:
        return None
    storage = query.checkpoint.steps if query.checkpoint is not None else "their storage"
    return Diagnostic.of(
        "MZ081.steps-not-match",
        address=query.address,
        step=step,
        storage=storage,
        start=existing.start,
        last_step=existing.stop - 1,
        start_over_hint=start_over_hint(query),
    )


def _steps_read(checkpoint: Checkpoint) -> range:
    """Return the endpoint's steps that were read, as far back as is known. Includes the steps of an earlier
    generation that this one continues. Raises OSError."""
    log, migrated = checkpoint.log, checkpoint.migrated_rows()
    end = log.entry(log.newest())
    first = StepIndex(checkpoint).find(0) if migrated is None or migrated.position is None else None
    after = first.end.get("step") if first is not None and isinstance(first.end, dict) else None
    return range(after - 1 if after else 0, (step_of(end) or 0) if end else 0)


def step_of(offset: str) -> Step | None:
    """Return the step in an entry of Spark's offset log, or None if the entry is something else."""
    try:
        with decoding("an offset"):
            return int(json.loads(offset)["step"])
    except OSError:
        return None


def diagnostics_of(problem: Exception, query: ResolvedQuery) -> tuple[Diagnostic, ...]:
    """Return a connector's exception as diagnostics of the query."""
    explanation = as_error(problem, str(query.address), secret_values(query))
    return tuple(
        replace(diagnostic, address=diagnostic.address or query.address)
        for diagnostic in explanation.diagnostics
    )
