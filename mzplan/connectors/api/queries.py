"""What a connector is: the two protocols that each type of source and sink fills, and what they are handed.

A connector decides nothing about when a query runs. A source says where its rows come from, a sink where
they go; `mzplan.spark` makes streaming queries of them. `probe` needs no pyspark and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.schema.columns import Column
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint

Rewriting = Callable[[str], AbstractContextManager[Any]]
"""What whoever rewrites files of the Delta table at a path must hold: of two who do so at once, Delta lets
only one commit. It holds for this process; whoever else writes a table is no concern of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConnection:
    """A connection ready for use: defaults filled in, secrets resolved (so: never shown). `connections` are
    those that it uses itself, by the property that names them."""

    address: Address
    type: str
    body: Mapping[str, Any] = field(repr=False)
    connections: Mapping[str, ResolvedConnection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """A query ready for use. `body` has its defaults; `columns` are the user's columns of the collection that
    it writes or, as a sink, reads, `keys` those that identify a row of it (empty: rows
    are only added to it); `directory` is where relative paths begin.
    `checkpoint` is of its generation; None where the warehouse is not known (a check from elsewhere).
    `connections` are all that it refers to, by the property that names them; `connection` is one of them."""

    description: Description
    body: Mapping[str, Any] = field(repr=False)
    connection: ResolvedConnection | None
    columns: tuple[Column, ...]
    directory: str
    keys: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    connections: Mapping[str, ResolvedConnection] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        return self.description.address

    @property
    def link(self) -> ResolvedConnection:
        """The connection of a type that always has one."""
        assert self.connection is not None, f"{self.address} has no connection"
        return self.connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A column that a sink writes. `type` in canonical Spark DDL; None where only Spark knows it."""

    name: str
    type: str | None


_LONGEST_UPSTREAM = 1 << 18  # characters of JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found. `upstream`: the identity of what a source reads, None if there is none to know.
    `makes`: whether a sink would first make something that its target lacks (`SinkConnector.prepare`);
    `lacks`: what that is, as errors, for one that has had it: only an apply that plans it makes it."""

    diagnostics: tuple[Diagnostic, ...] = ()
    upstream: Mapping[str, Any] | None = None
    makes: bool = False
    lacks: tuple[Diagnostic, ...] = ()

    def __post_init__(self) -> None:
        """Raise MzplanError MZ064 for an `upstream` that can't be stored: a server may say anything."""
        try:
            fits = len(json.dumps(dict(self.upstream or {}), allow_nan=False)) <= _LONGEST_UPSTREAM
        except (TypeError, ValueError, RecursionError):
            fits = False
        if not fits:
            raise error(
                "MZ064",
                "The identity of a server can't be stored",
                f"An upstream's identity is JSON of at most {_LONGEST_UPSTREAM:,} characters.",
                "look which server answers there; of a connector that is not mzplan's own, tell its authors.",
            )

    @property
    def ok(self) -> bool:
        """Whether nothing that was found is an error."""
        return not any(d.severity == "error" for d in self.diagnostics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """One run of a sink's query. `outputs` are its columns as Spark analysed them; `epoch` is the lease's;
    `checkpoint` is its own, and `begins` says that it is still empty. `fail` takes the error of a batch, to
    be shown to people instead of what Spark makes of it; `warn` what they should know although the query
    goes on. `interrupt` takes what ends a batch that waits for a server, called when the query is to stop
    and it still runs. `covers` gives the first and last step of the source that a planned step of the sink
    covers, at least in part; None where that is not known. `wrote` takes a step and how many rows it has
    written, from a connector that writes batches itself; what Spark writes is `frames.metrics.with_count`.
    `rewriting`: see there."""

    query: ResolvedQuery
    outputs: tuple[Output, ...]
    epoch: int
    checkpoint: Checkpoint
    begins: bool
    fail: Callable[[BaseException], None]
    warn: Callable[[Diagnostic], None]
    interrupt: Callable[[Callable[[], None]], None]
    covers: Callable[[int], tuple[int, int] | None]
    wrote: Callable[[int, int], None]
    rewriting: Rewriting


def empties_target(query: ResolvedQuery) -> bool:
    """Whether it is a new generation of a sink that wants its target emptied first."""
    return query.description.generation > 1 and query.body.get("on_replace") == "truncate"


def resolve(
    description: Description, secrets: Secrets, directory: str, warehouse: str | None = None
) -> ResolvedQuery:
    """Fill in defaults and secrets. Raises MzplanError: MZ056 or MZ103 for a secret that has no value here,
    MZ102 for a reference where none may stand, and what the secrets do not permit. Descriptions come from the
    store and the warehouse, too: what was checked when files were loaded is checked here again."""
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
    )


def resolve_connection(inlined: InlinedConnection, secrets: Secrets) -> ResolvedConnection:
    """As `resolve`, for a connection and those that it uses, at any depth."""
    secrets.permit(inlined)
    return _resolved(inlined, secrets)


def _resolved(inlined: InlinedConnection, secrets: Secrets) -> ResolvedConnection:
    kind = resource_kind("connection", inlined.type)
    return ResolvedConnection(
        address=inlined.address,
        type=inlined.type,
        body=secrets.fill(kind.with_defaults(inlined.body), kind.takes_secret, str(inlined.address)),
        connections={role: _resolved(needed, secrets) for role, needed in inlined.connections.items()},
    )
