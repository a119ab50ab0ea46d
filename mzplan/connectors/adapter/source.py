"""Any DurableInputEndpoint as a source: the local one, and those of third parties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.adapter.config import endpoint_config, endpoint_name, explained, secret_values
from mzplan.connectors.api.protocols import Probe, ResolvedQuery
from mzplan.connectors.frames.types import ddl
from mzplan.endpoints.interface import DurableInputFactory, Probes, Step
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.schema.columns import CHANGE, POSITION, Column, change_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EndpointSource:
    """Reads one step in each micro-batch. `connector` is the plug-in, for its probe; None for our own."""

    position = "STRUCT<step: BIGINT, row: BIGINT>"
    """`row` counts the rows of a step."""
    guarded = False

    def __init__(self, factory: DurableInputFactory, connector: Any = None):
        self._factory = factory
        self._connector = connector

    def route(self, query: ResolvedQuery) -> str:
        name = self._factory.name()
        return f"{query.connection.address} ({name})" if query.connection else name

    def probe(self, query: ResolvedQuery) -> Probe:
        """What the connector finds; the type, where it finds no identity of its upstream."""
        type_ = {"type": query.description.type}
        try:
            asked = self._connector
            found = asked.probe("source", endpoint_config(query)) if isinstance(asked, Probes) else None
        except Exception as problem:
            return Probe(diagnostics=diagnostics_of(problem, query))
        return Probe(upstream={**(found or {}), **type_})

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        differing = sorted(key for key in recorded if recorded[key] != found.get(key))
        if not differing:
            return None
        what = ", ".join(f"{key} is {found.get(key)!r} instead of {recorded[key]!r}" for key in differing)
        return Diagnostic(
            code="MZ043",
            summary=f"{query.address} would read another upstream",
            detail=f"{self.route(query)}: {what}. The checkpoint's steps belong to the former one.",
            hint="point the connection back to the former upstream; or let the source begin anew on this "
            f"one, with its sinks: mzplan apply --replace {query.address} --allow-replace",
            address=query.address,
            exit_code=ExitCode.REFUSED,
        )

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        step = step_of(position)
        if step is None or query.checkpoint is None:
            return None
        try:
            endpoint = self._factory.new_endpoint(endpoint_name(query), endpoint_config(query))
            there = endpoint.steps()
        except Exception as problem:
            return diagnostics_of(problem, query)[0]
        return steps_missing(query, step, there)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        columns = change_columns(query.columns, query.keys) if query.keys else query.columns
        schema = f"{ddl(columns)}, {POSITION} {self.position}"
        rows = read_steps(spark, query, self._factory, columns, schema)
        # As SourceConnector.stream has it: the change last.
        return rows.select(*(c for c in rows.columns if c != CHANGE), CHANGE) if query.keys else rows


def read_steps(
    spark: SparkSession,
    query: ResolvedQuery,
    factory: DurableInputFactory,
    columns: Sequence[Column],
    schema: str,
    *,
    placed: bool = False,
) -> DataFrame:
    """A stream of an endpoint's steps, one in each micro-batch: `columns` are what the endpoint pushes,
    `schema` all that comes out, as DDL; for `placed` see ReaderPlan."""
    from mzplan.connectors.adapter.step_reader import ReaderPlan, data_source

    assert query.checkpoint is not None, "a stream has a checkpoint"
    log = query.checkpoint.log
    logged = log.entry(log.newest())  # its batch done or not
    plan = ReaderPlan(
        subject=str(query.address),
        name=endpoint_name(query),
        factory=factory,
        config=endpoint_config(query),
        columns=tuple(columns),
        secrets=secret_values(query),
        resume=step_of(logged) if logged else None,
        placed=placed,
    )
    made = data_source(plan)
    spark.dataSource.register(made)
    return spark.readStream.format(made.name()).schema(schema).load()


def steps_missing(query: ResolvedQuery, step: Step, there: range) -> Diagnostic | None:
    """MZ081 where a checkpoint goes on with a step that its endpoint, which has those, can't give it."""
    if there.start <= step <= there.stop:
        return None
    storage = query.checkpoint.steps if query.checkpoint is not None else "their storage"
    return Diagnostic(
        code="MZ081",
        summary=f"The steps of {query.address} are not what its checkpoint needs",
        detail=f"Its checkpoint goes on with step {step}, and steps {there.start} to {there.stop} "
        f"(excluded) are there: {storage} was restored, or removed.",
        hint="bring it back; or let the source begin anew, with its sinks: "
        f"mzplan apply --replace {query.address} --allow-replace",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def step_of(offset: str) -> Step | None:
    """The step in an entry of Spark's offset log; None for something else."""
    try:
        return int(json.loads(offset)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def diagnostics_of(problem: BaseException, query: ResolvedQuery) -> tuple[Diagnostic, ...]:
    """What a connector raised when it was asked."""
    found = explained(problem, str(query.address), secret_values(query))
    if found is None:
        raise problem
    return tuple(replace(one, address=one.address or query.address) for one in found.diagnostics)
