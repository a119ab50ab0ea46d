"""Any DurableInputEndpoint as a source: the local one, and those of third parties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.adapter.config import endpoint_config, endpoint_name, explained, secret_values
from mzplan.connectors.api.protocols import Probe, ResolvedQuery
from mzplan.connectors.frames.types import ddl
from mzplan.endpoints.interface import DurableInputFactory, Step
from mzplan.model.diagnostics import Diagnostic, ExitCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class EndpointSource:
    """Reads one step in each micro-batch. `connector` is the plug-in, for its probe; None for our own."""

    position = "STRUCT<step: BIGINT, row: BIGINT>"
    """`row` counts the rows of a step."""
    guarded = False

    def __init__(self, factory: DurableInputFactory, connector: Any = None):
        self._factory = factory
        self._ask = getattr(connector, "probe", None)

    def place(self, query: ResolvedQuery) -> str:
        name = self._factory.name()
        return f"{query.connection.address} ({name})" if query.connection else name

    def probe(self, query: ResolvedQuery) -> Probe:
        """What the connector finds; the type, where it finds no identity of its upstream."""
        type_ = {"type": query.description.type}
        try:
            found = self._ask("source", endpoint_config(query)) if self._ask else None
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
            detail=f"{self.place(query)}: {what}. The checkpoint's steps belong to the former one.",
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
        if there.start <= step <= there.stop:
            return None
        return Diagnostic(
            code="MZ081",
            summary=f"The steps of {query.address} are not what its checkpoint needs",
            detail=f"Its checkpoint goes on with step {step}, and steps {there.start} to {there.stop} "
            f"(excluded) are there: {query.checkpoint.steps} was restored, or removed.",
            hint="bring it back; or let the source begin anew, with its sinks: "
            f"mzplan apply --replace {query.address} --allow-replace",
            address=query.address,
            exit_code=ExitCode.REFUSED,
        )

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        from mzplan.connectors.adapter.step_reader import ReaderPlan, data_source
        from mzplan.schema.columns import CHANGE, POSITION, change_columns

        assert query.checkpoint is not None, "a stream has a checkpoint"
        columns = change_columns(query.columns, query.keys) if query.keys else query.columns
        logged = query.checkpoint.logged()
        plan = ReaderPlan(
            subject=str(query.address),
            name=endpoint_name(query),
            factory=self._factory,
            config=endpoint_config(query),
            columns=columns,
            secrets=secret_values(query),
            resume=step_of(logged) if logged else None,
        )
        made = data_source(plan)
        spark.dataSource.register(made)
        schema = f"{ddl(columns)}, {POSITION} {self.position}"
        rows = spark.readStream.format(made.name()).schema(schema).load()
        # As SourceConnector.stream has it: the change last.
        return rows.select(*(c for c in rows.columns if c != CHANGE), CHANGE) if query.keys else rows


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
