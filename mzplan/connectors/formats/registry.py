"""schema-registry connections: whether a topic's schema exists and fits the columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from mzplan.connectors.api.queries import Output, ResolvedConnection, ResolvedQuery
from mzplan.connectors.formats.registry_fit import avro_readable, avro_writable, readable, writable
from mzplan.connectors.network.registry_client import Subject, latest_version, list_subjects, server_of
from mzplan.connectors.network.registry_http import RegistryError
from mzplan.connectors.network.tunnels import Through, through_tunnel, tunnel_problem
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.columns import Column

ROLE = "schema_registry"
"""The property that names the schema-registry connection of a source or sink."""
Compare = Callable[[tuple[str, ...]], tuple[list[str], list[str]]]
"""A schema's texts → errors, and warnings."""


def check_source(query: ResolvedQuery, columns: Sequence[Column]) -> tuple[Diagnostic, ...]:
    """The reasons why records of the topic's schema can't be read as these columns."""
    within = "after" if (query.body.get("envelope") or {}).get("type") == "debezium" else None
    if query.body["format"]["type"] == "avro":
        return _check(query, "AVRO", lambda schemas: avro_readable(schemas, columns, within))
    return _check(query, "JSON", lambda schemas: readable(json.loads(schemas[-1]), columns, within))


def check_sink(query: ResolvedQuery, outputs: Sequence[Output]) -> tuple[Diagnostic, ...]:
    """The reasons why the topic's schema does not allow what the sink writes."""
    if query.body["format"]["type"] == "avro":
        return _check(query, "AVRO", _avro(outputs))
    return _check(query, "JSON", lambda schemas: writable(json.loads(schemas[-1]), outputs))


def schema_to_write(query: ResolvedQuery, outputs: Sequence[Output]) -> Subject:
    """The latest version of the topic's subject, if it allows these columns. Raises MzplanError."""
    found = latest(query)
    problems = _compare(query, found, "AVRO", _avro(outputs))
    if problems:
        raise MzplanError(problems)
    return found


def latest(query: ResolvedQuery) -> Subject:
    """The latest version of the topic's subject. Raises MzplanError."""
    found = _latest(query, query.connections[ROLE])
    if isinstance(found, Diagnostic):
        raise MzplanError(found)
    return found


def reach(registry: ResolvedConnection, directory: str, address: Address) -> Diagnostic | None:
    """Whether a registry answers and accepts the connection's login; None if so."""
    found = _looked_up(
        registry, directory, address, "", lambda through: list_subjects(registry, directory, through)
    )
    return found if isinstance(found, Diagnostic) else None


def _check(query: ResolvedQuery, type_: str, problems_of: Compare) -> tuple[Diagnostic, ...]:
    registry = query.connections.get(ROLE)
    if registry is None:
        return ()
    found = _latest(query, registry)
    if isinstance(found, Diagnostic):
        return (found,)
    return _compare(query, found, type_, problems_of)


def _avro(outputs: Sequence[Output]) -> Compare:
    return lambda schemas: (avro_writable(schemas, outputs), [])


def _compare(
    query: ResolvedQuery, found: Subject, type_: str, problems_of: Compare
) -> tuple[Diagnostic, ...]:
    where = f"{query.connections[ROLE].address}, subject {_subject(query)}, version {found.version}"
    if found.type != type_:
        plain = "plain JSON" if type_ == "JSON" else type_
        text = f"its schema is of type {found.type}, and {query.address} {_verb(query)} {plain}"
        return (_unfit(query, where, [text]),)
    try:
        wrong, doubtful = problems_of(found.schemas)
    except ValueError:
        wrong, doubtful = ["its schema is no JSON"], []
    return (
        *((_unfit(query, where, wrong),) if wrong else ()),
        *((_unfit(query, where, doubtful, severity=True),) if doubtful else ()),
    )


def _subject(query: ResolvedQuery) -> str:
    return str(query.body.get("subject") or f"{query.body['topic']}-value")


def _latest(query: ResolvedQuery, registry: ResolvedConnection) -> Subject | Diagnostic:
    subject = _subject(query)
    found = _looked_up(
        registry,
        query.directory,
        query.address,
        subject,
        lambda through: latest_version(registry, query.directory, through, subject),
    )
    assert found is not None, "a subject has a version"
    return found


def _verb(query: ResolvedQuery) -> str:
    return "reads" if query.address.kind == "source" else "writes"


def _looked_up(
    registry: ResolvedConnection,
    directory: str,
    address: Address,
    subject: str,
    question: Callable[[Through | None], Subject | None],
) -> Subject | Diagnostic | None:
    """The answer, or a Diagnostic of why there is none."""
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
            code, summary = "MZ126", "The schema registry refused the credentials"
            hint = f"check user and password of {registry.address}."
        case "forbidden":
            code, hint = "MZ126", "let this user read the subject."
            summary = f"Subject {subject} may not be read" if subject else "The schema registry denies access"
        case "missing":
            code, summary = "MZ127", f"Subject {subject} does not exist"
            hint = "register the schema there, or name the topic's subject: `subject: NAME`."
        case _:
            code, summary = "MZ125", "The schema registry can't be reached"
            hint = (
                f"check url and tls of {registry.address}, and that the registry runs and is reachable "
                "from where the query runs."
            )
    return Diagnostic(
        code=code, summary=summary, detail=f"{where}: {problem.text}.", hint=hint, address=address
    )


def _unfit(query: ResolvedQuery, where: str, what: list[str], severity: bool = False) -> Diagnostic:
    """MZ128: an error, or a warning of what may be intended."""
    return Diagnostic(
        severity="warning" if severity else "error",
        code="MZ128",
        summary=f"The topic's schema and the columns of {query.address} differ",
        detail=f"{where}: {'; '.join(what)}.",
        hint="correct the columns, or register another version of the schema.",
        address=query.address,
    )
