"""The values that connectors receive and return: resolved queries and connections, probes, runs of sinks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.schema.columns import Column
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchWriter = Callable[["DataFrame", int], None]
"""Writes a micro-batch, given its step: the function that Spark's `foreachBatch` takes."""

Rewriting = Callable[[str], AbstractContextManager[Any]]
"""Returns the lock to hold while rewriting files of the Delta table at a path.

Delta lets only one of two concurrent rewrites commit. The lock covers this process only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConnection:
    """A connection with its defaults and secrets filled in. Because of the secrets, it's never shown.

    - `connections`: the connections that it uses itself, by the property that names them.
    """

    address: Address
    type: str
    body: Mapping[str, Any] = field(repr=False)
    connections: Mapping[str, ResolvedConnection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """A query with its defaults and secrets filled in.

    - `connection`, `connections`: its main connection, and all its connections by the property that names
      them.
    - `columns`: the user's columns of the collection that it writes or, for a sink, reads.
    - `directory`: the folder that relative paths start from.
    - `keys`: the columns that identify a row of the collection; empty if rows are only added to it.
    - `checkpoint`: the generation's checkpoint; None if the caller doesn't have the warehouse, such as a
      check on another machine.
    - `is_proposed`: the description isn't committed, so its code must not run.
    """

    description: Description
    body: Mapping[str, Any] = field(repr=False)
    connection: ResolvedConnection | None
    columns: tuple[Column, ...]
    directory: str
    keys: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    connections: Mapping[str, ResolvedConnection] = field(default_factory=dict)
    is_proposed: bool = False

    @property
    def address(self) -> Address:
        return self.description.address

    @property
    def link(self) -> ResolvedConnection:
        """Return the connection of a query whose type always has one."""
        assert self.connection is not None, f"{self.address} has no connection"
        return self.connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A column that a sink writes. `type` is canonical Spark DDL, or None if only Spark knows it."""

    name: str
    type: str | None


_MAX_UPSTREAM = 1 << 18  # characters of JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The findings of a probe.

    - `upstream`: the identity of the source's upstream; None if it isn't known.
    - `must_create`: whether the sink must first create something in its target (`SinkConnector.prepare`).
    - `missing`: errors for the missing parts of a target that the sink has written before. Only an apply that
      plans these parts creates them.
    """

    diagnostics: tuple[Diagnostic, ...] = ()
    upstream: Mapping[str, Any] | None = None
    must_create: bool = False
    missing: tuple[Diagnostic, ...] = ()

    def __post_init__(self) -> None:
        """Raise MzplanError MZ064 if `upstream` can't be stored, because a server may return anything."""
        try:
            fits = len(json.dumps(dict(self.upstream or {}), allow_nan=False)) <= _MAX_UPSTREAM
        except (TypeError, ValueError, RecursionError):
            fits = False
        if not fits:
            raise error("MZ064.identity-server", max_upstream=_MAX_UPSTREAM)

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return not any(d.severity == "error" for d in self.diagnostics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One run of a sink's query.

    - `outputs`: the columns that the sink writes, as Spark analysed them.
    - `epoch`: the epoch of the runner's lease.
    - `checkpoint`, `is_new`: the query's checkpoint, and whether it is still empty.
    - `fail`: call it with the error of a batch. People see this error instead of Spark's.
    - `warn`: call it with a diagnostic that people should see although the query continues.
    - `interrupt`: call it with a function that interrupts a batch which waits for a server. The function runs
      if the query should stop while the batch still runs.
    - `covers`: returns the first and last step of the source that a planned step covers, at least in part;
      None if unknown.
    - `wrote`: call it with a step and the number of rows written, if the connector writes batches itself. If
      Spark writes them, `frames.metrics.with_count` counts the rows.
    - `rewriting`: see `Rewriting`.
    - `writer_of`: a sink with a key passes its `foreachBatch` function through it. The first step of a new
      generation then gets only the difference to the former one, with `_change` even if the collection has
      no key.
    """

    query: ResolvedQuery
    outputs: tuple[Output, ...]
    epoch: int
    checkpoint: Checkpoint
    is_new: bool
    fail: Callable[[BaseException], None]
    warn: Callable[[Diagnostic], None]
    interrupt: Callable[[Callable[[], None]], None]
    covers: Callable[[int], tuple[int, int] | None]
    wrote: Callable[[int, int], None]
    rewriting: Rewriting
    writer_of: Callable[[BatchWriter], BatchWriter] = lambda write: write


def empties_target(query: ResolvedQuery) -> bool:
    """Whether the sink's target must be emptied first, because this is a new generation."""
    return query.description.generation > 1 and query.body.get("on_replace") == "truncate"


def resolve(
    description: Description, secrets: Secrets, directory: str, warehouse: str | None = None
) -> ResolvedQuery:
    """Fill in a query's defaults and secrets.

    Descriptions also come from the store and the warehouse, so the checks of the loader are repeated here.
    Raises MzplanError: MZ056 or MZ103 for a secret without a value here, MZ102 for a reference where none is
    allowed, and the errors of `Secrets.permit`.
    """
    secrets.permit(description)
    connections = {role: _resolved(inlined, secrets) for role, inlined in description.connections.items()}
    kind = resource_kind(description.address.kind, description.type)
    collection = description.rows_of
    checkpoint = Checkpoint.of(warehouse, description.id, description.generation) if warehouse else None
    return ResolvedQuery(
        description=description,
        body=secrets.fill(kind.with_defaults(description.body), kind.takes_secret, str(description.address)),
        connection=connections.get("connection"),
        connections=connections,
        columns=columns_of(collection.type, collection.body),
        keys=keys_of(collection.type, collection.body),
        directory=directory,
        checkpoint=checkpoint,
        is_proposed=secrets.are_proposed,
    )


def resolve_connection(connection: InlinedConnection, secrets: Secrets) -> ResolvedConnection:
    """Fill in the defaults and secrets of a connection and of the connections that it uses, as `resolve`
    does."""
    secrets.permit(connection)
    return _resolved(connection, secrets)


def _resolved(inlined: InlinedConnection, secrets: Secrets) -> ResolvedConnection:
    kind = resource_kind("connection", inlined.type)
    return ResolvedConnection(
        address=inlined.address,
        type=inlined.type,
        body=secrets.fill(kind.with_defaults(inlined.body), kind.takes_secret, str(inlined.address)),
        connections={role: _resolved(inner, secrets) for role, inner in inlined.connections.items()},
    )
