"""schema-registry connections: whether a topic's schema is there, and fits the columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from mzplan.columns import Column
from mzplan.connectors.interface import Output, ResolvedConnection, ResolvedQuery
from mzplan.connectors.registry_client import (
    RegistryError,
    Subject,
    latest_version,
    list_subjects,
    server_of,
)
from mzplan.connectors.registry_fit import readable, writable
from mzplan.connectors.tunnels import Through, through_tunnel, tunnel_problem
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError

ROLE = "schema_registry"
"""The property that names the schema-registry connection of a source or sink."""


def check_source(query: ResolvedQuery, columns: Sequence[Column]) -> tuple[Diagnostic, ...]:
    """Whether the records of the topic's schema can be read as these columns."""
    return _check(query, lambda schema: readable(schema, columns))


def check_sink(query: ResolvedQuery, outputs: Sequence[Output]) -> tuple[Diagnostic, ...]:
    """Whether what the sink writes is what the topic's schema allows."""
    return _check(query, lambda schema: writable(schema, outputs))


def reach(registry: ResolvedConnection, directory: str, address: Address) -> Diagnostic | None:
    """Whether a registry answers and lets the connection in, whatever is looked up there."""
    found = _ask(
        registry, directory, address, "", lambda through: list_subjects(registry, directory, through)
    )
    return found if isinstance(found, Diagnostic) else None


def _check(
    query: ResolvedQuery, problems_of: Callable[[object], tuple[list[str], list[str]]]
) -> tuple[Diagnostic, ...]:
    registry = query.connections.get(ROLE)
    if registry is None:
        return ()
    subject = str(query.body.get("subject") or f"{query.body['topic']}-value")
    found = _ask(
        registry,
        query.directory,
        query.address,
        subject,
        lambda through: latest_version(registry, query.directory, through, subject),
    )
    if isinstance(found, Diagnostic):
        return (found,)
    assert found is not None, "a subject has a version"
    where = f"{registry.address}, subject {subject}, version {found.version}"
    if found.type != "JSON":
        text = f"its schema is of type {found.type}, and {query.address} {_does(query)} plain JSON"
        return (_unfit(query, where, [text]),)
    try:
        wrong, doubtful = problems_of(json.loads(found.schema))
    except ValueError:
        wrong, doubtful = ["its schema is no JSON"], []
    return (
        *((_unfit(query, where, wrong),) if wrong else ()),
        *((_unfit(query, where, doubtful, severity=True),) if doubtful else ()),
    )


def _does(query: ResolvedQuery) -> str:
    return "reads" if query.address.kind == "source" else "writes"


def _ask(
    registry: ResolvedConnection,
    directory: str,
    address: Address,
    subject: str,
    question: Callable[[Through | None], Subject | None],
) -> Subject | Diagnostic | None:
    """The answer, or why there is none."""
    host, port = server_of(registry)
    try:
        with through_tunnel(registry, host, port, directory, address) as through:
            return question(through)
    except MzplanError as problem:
        return problem.diagnostics[0]
    except RegistryError as problem:
        in_tunnel = tunnel_problem(registry, host, port, directory, address)
        return in_tunnel or _diagnostic(registry, address, subject, problem)


def _diagnostic(
    registry: ResolvedConnection, address: Address, subject: str, problem: RegistryError
) -> Diagnostic:
    where = f"{registry.address} ({registry.body['url']})"
    match problem.why:
        case "refused":
            return Diagnostic(
                code="MZ126",
                summary="The schema registry refused the credentials",
                detail=f"{where}: {problem.text}.",
                hint=f"check user and password of {registry.address}.",
                address=address,
            )
        case "forbidden":
            return Diagnostic(
                code="MZ126",
                summary=f"Subject {subject} may not be read"
                if subject
                else "The schema registry denies access",
                detail=f"{where}: {problem.text}.",
                hint="let this user read the subject.",
                address=address,
            )
        case "missing":
            return Diagnostic(
                code="MZ127",
                summary=f"Subject {subject} does not exist",
                detail=f"{where}: {problem.text}.",
                hint="register the schema there, or name the topic's subject: `subject: NAME`.",
                address=address,
            )
        case _:
            return Diagnostic(
                code="MZ125",
                summary="The schema registry can't be reached",
                detail=f"{where}: {problem.text}.",
                hint=f"check url and tls of {registry.address}, and that the registry runs and is reachable "
                "from where the query runs.",
                address=address,
            )


def _unfit(query: ResolvedQuery, where: str, what: list[str], severity: bool = False) -> Diagnostic:
    """MZ128: an error, or a warning of what may be meant so."""
    return Diagnostic(
        severity="warning" if severity else "error",
        code="MZ128",
        summary=f"The topic's schema and the columns of {query.address} differ",
        detail=f"{where}: {'; '.join(what)}.",
        hint="correct the columns, or register another version of the schema.",
        address=query.address,
    )
