"""An endpoint's name, configuration and errors, for the adapters (docs/internals/endpoints.md)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import different_rows_error
from mzplan.connectors.api.upstreams import origin_of
from mzplan.connectors.formats.records import MARK
from mzplan.endpoints.interface import DurableInputEndpoint, DurableInputFactory, StepError, SupportsClose
from mzplan.endpoints.replay import DiffersError
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error, sentence
from mzplan.schema.columns import Column
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.resolved import remember, scrub, shortened

Endpoint = TypeVar("Endpoint")


def endpoint_name(query: ResolvedQuery) -> str:
    """Return the name of a query's endpoint. It names one generation of a source or sink, and doesn't depend
    on the address. A source that continues an earlier generation's steps keeps that generation's name."""
    return f"{query.description.id}.g{origin_of(query)}"


def endpoint_config(query: ResolvedQuery, outputs: Sequence[Output] | None = None) -> dict[str, Any]:
    """Return the configuration of a query's endpoint. For a sink, `outputs` are the columns that it
    writes."""
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    columns: Sequence[Column] = query.columns
    if outputs is not None:
        columns = [Column(output.name, output.type or "STRING") for output in outputs]
    return {
        "address": str(query.address),
        "directory": query.directory,
        "storage": query.checkpoint.steps if query.checkpoint else None,
        "connection": dict(query.connection.body) if query.connection else None,
        "options": {key: value for key, value in query.body.items() if key not in references},
        "columns": [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in columns],
    }


@contextlib.contextmanager
def open_endpoint(factory: DurableInputFactory, query: ResolvedQuery) -> Iterator[DurableInputEndpoint]:
    """Open the endpoint of a source, and close it afterwards."""
    with closing(factory.new_endpoint(endpoint_name(query), endpoint_config(query))) as endpoint:
        yield endpoint


@contextlib.contextmanager
def closing(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Close an endpoint afterwards, if it can be closed."""
    try:
        yield endpoint
    finally:
        if isinstance(endpoint, SupportsClose):
            endpoint.close()


def secret_values(query: ResolvedQuery) -> tuple[str, ...]:
    """Return the secrets in a query's configuration, longest first, which no error may show."""
    secrets = list(_secrets(query.address.kind, query.description.type, query.body))
    if query.connection is not None:
        secrets += _secrets("connection", query.connection.type, query.connection.body)
    return tuple(sorted(secrets, key=len, reverse=True))


def _secrets(kind: Any, type_: str, body: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    secrets: list[str] = []
    for key, value in body.items():
        if isinstance(value, Mapping):
            secrets += _secrets(kind, type_, value, (*path, key))
        elif value and resource_kind(kind, type_).is_sensitive((*path, key)):
            secrets.append(str(value))
    return secrets


def as_error(problem: Exception, subject: str, secrets: Sequence[str]) -> MzplanError:
    """Return a connector's exception as an MzplanError that shows no secrets."""
    if isinstance(problem, MzplanError):
        return problem
    for secret in secrets:  # a task's process has resolved no secret itself
        remember(secret)
    text = shortened(re.sub(r"\s+", " ", scrub(str(problem).strip() or type(problem).__name__)), 500)
    if isinstance(problem, StepError):
        return error(
            "MZ081",
            f"The steps of {subject} don't match its checkpoint",
            f"{text}.",
            f"restore its storage; or start over: mzplan apply --replace {subject} --allow-replace.",
        )
    if isinstance(problem, DiffersError):
        return different_rows_error(Address.parse(subject), text)
    known = isinstance(problem, OSError | ValueError | RuntimeError)
    return error(
        "MZ082",
        f"The connector of {subject} reports an error",
        text if known else f"{type(problem).__name__}: {text}",
        "fix the reported problem; mzplan tries again.",
    )


def as_task_error(problem: Exception, subject: str, secrets: Sequence[str]) -> RuntimeError:
    """Return a connector's exception as a code and one line of text. mzplan.spark.failures reads them from
    the error of a Spark task."""
    first = as_error(problem, subject, secrets).diagnostics[0]
    return RuntimeError(f"{MARK}[{first.code}]: {' '.join(sentence(first).splitlines())}")
