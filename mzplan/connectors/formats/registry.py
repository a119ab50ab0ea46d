"""schema-registry connections: whether a topic's schema exists and fits the columns."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import Output, ResolvedConnection, ResolvedQuery
from mzplan.connectors.formats.protobuf_decoder import protobuf_readable
from mzplan.connectors.formats.protobuf_schema import texts_of, texts_of_project
from mzplan.connectors.formats.registry_fit import avro_readable, avro_writable, readable, writable
from mzplan.connectors.formats.registry_http import (
    Get,
    RegistryError,
    RegistryServer,
    get,
    schema_texts,
    schema_type,
    whole_number,
)
from mzplan.connectors.network.tunnels import through_tunnel, tunnel_problem
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.words import count, one_line
from mzplan.schema.columns import Column
from mzplan.secrets.files import read_pem

ROLE = "schema_registry"
"""The property of a source or sink that names its schema-registry connection."""
_CERTIFICATE = re.compile(rb"-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----[\x00-\x7f]+?-----END \1-----")
# Errors of a comparison with JSON that isn't a schema: a registry may hold anything.
_NOT_A_SCHEMA = (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_MAX_REASONS = 40  # reasons to show, because a schema may have many names
_MAX_REASON = 500  # characters of a reason
Answer = TypeVar("Answer")
Compare = Callable[[Mapping[str, str]], tuple[list[str], list[str]]]
"""Takes a schema's texts, as `Subject` has them. Returns errors and warnings."""


def check_source(query: ResolvedQuery, columns: Sequence[Column]) -> tuple[Diagnostic, ...]:
    """Return why records with the topic's schema can't be read as these columns."""
    within = "after" if (query.body.get("envelope") or {}).get("type") == "debezium" else None
    format_ = query.body["format"]
    if format_["type"] == "avro":
        return _check(query, "AVRO", lambda schemas: avro_readable(tuple(schemas.values()), columns, within))
    if format_["type"] == "protobuf":
        message = str(format_.get("message", ""))
        return _check(
            query, "PROTOBUF", lambda schemas: protobuf_readable(texts_of(schemas), message, columns)
        )
    converted = format_.get("values") == "converted"
    return _check(
        query, "JSON", lambda schemas: readable(json.loads(schemas[""]), columns, within, converted=converted)
    )


def check_definition(query: ResolvedQuery, columns: Sequence[Column]) -> tuple[Diagnostic, ...]:
    """Return why records can't be read with the Protobuf definition of the project."""
    format_ = query.body["format"]
    texts, message = texts_of_project(format_), str(format_["message"])
    return _problems(
        query, f"{format_['proto_file']}, {message}", *protobuf_readable(texts, message, columns)
    )


def check_sink(query: ResolvedQuery, outputs: Sequence[Output]) -> tuple[Diagnostic, ...]:
    """Return why the topic's schema doesn't allow the sink's columns."""
    if query.body["format"]["type"] == "avro":
        return _check(query, "AVRO", _avro_comparison(outputs))
    return _check(query, "JSON", lambda schemas: writable(json.loads(schemas[""]), outputs))


def schema_to_write(query: ResolvedQuery, outputs: Sequence[Output]) -> Subject:
    """Return the latest version of the topic's subject, if it allows these columns. Raises MzplanError."""
    subject = latest(query)
    problems = _compare(query, subject, "AVRO", _avro_comparison(outputs))
    if problems:
        raise MzplanError(problems)
    return subject


def latest(query: ResolvedQuery) -> Subject:
    """Return the latest version of the topic's subject. Raises MzplanError."""
    subject = _subject(query)
    return _ask(query, query.connections[ROLE], lambda request: latest_version(request, subject), subject)


def reach(query: ResolvedQuery) -> Diagnostic | None:
    """Return why a registry, the query's connection, doesn't answer or refuses the login, or None."""
    try:
        _ask(query, query.link, list_subjects)
    except MzplanError as problem:
        return problem.diagnostics[0]
    return None


def _check(query: ResolvedQuery, type_: str, problems_of: Compare) -> tuple[Diagnostic, ...]:
    if ROLE not in query.connections:
        return ()
    try:
        subject = latest(query)
    except MzplanError as problem:
        return problem.diagnostics[:1]
    return _compare(query, subject, type_, problems_of)


def _avro_comparison(outputs: Sequence[Output]) -> Compare:
    return lambda schemas: (avro_writable(tuple(schemas.values()), outputs), [])


def _compare(
    query: ResolvedQuery, subject: Subject, type_: str, problems_of: Compare
) -> tuple[Diagnostic, ...]:
    where = f"{query.connections[ROLE].address}, subject {_subject(query)}, version {subject.version}"
    if subject.type != type_:
        plain = "plain JSON" if type_ == "JSON" else type_
        text = f"its schema is of type {subject.type}, and {query.address} {_verb(query)} {plain}"
        return (_unfit(query, where, [text]),)
    try:
        errors, warnings = problems_of(subject.texts)
    except ValueError:
        errors, warnings = ["its schema is not JSON"], []
    except _NOT_A_SCHEMA as problem:
        errors, warnings = [f"its schema is damaged: {type(problem).__name__}"], []
    return _problems(query, where, errors, warnings)


def _problems(
    query: ResolvedQuery, where: str, errors: list[str], warnings: list[str]
) -> tuple[Diagnostic, ...]:
    return (
        *((_unfit(query, where, errors),) if errors else ()),
        *((_unfit(query, where, warnings, is_warning=True),) if warnings else ()),
    )


def _subject(query: ResolvedQuery) -> str:
    return str(query.body.get("subject") or f"{query.body['topic']}-value")


def _verb(query: ResolvedQuery) -> str:
    return "reads" if query.address.reads_upstream else "writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The latest version of a subject.

    - `id`: the schema's id in the registry.
    - `type`: AVRO, JSON or PROTOBUF.
    - `texts`: the texts of the schemas that the schema refers to, by the names of the references, then the
      schema's own text by "".
    """

    version: int
    id: int
    type: str
    texts: Mapping[str, str]

    @property
    def schemas(self) -> tuple[str, ...]:
        """Return the texts without their names."""
        return tuple(self.texts.values())


def server(connection: ResolvedConnection, directory: str) -> RegistryServer:
    """Return a connection's server. Raises RegistryError if its certificates can't be read."""
    body = connection.body
    ca = body["tls"].get("ca") if body["url"].startswith("https:") else None
    try:
        pem = _certificates(read_pem(Path(directory) / ca)) if ca else None
    except OSError as problem:
        raise RegistryError("unreachable", f"{ca}: {(problem.strerror or str(problem)).lower()}") from None
    if pem == "":  # without certificates, Python would trust the machine's
        raise RegistryError("unreachable", f"{ca}: no certificates in PEM")
    try:
        ssl.create_default_context(cadata=pem) if pem else None
    except ssl.SSLError:
        raise RegistryError("unreachable", f"{ca}: its certificates are damaged") from None
    login = f"{body['user']}:{body.get('password', '')}" if "user" in body else None
    return RegistryServer(url=body["url"], login=login, ca=pem, seconds=PROBE_TIMEOUT_S)


def _certificates(data: bytes) -> str:
    """Return a file's certificates without the comments beside them, because ssl accepts only ASCII."""
    return "\n".join(match[0].decode("ascii") for match in _CERTIFICATE.finditer(data))


def list_subjects(request: Get) -> None:
    """Check that the registry answers and accepts the login. Raises RegistryError."""
    if not isinstance(request("/subjects"), list):
        raise RegistryError("answer", "it didn't answer /subjects with a list: is it a schema registry?")


def latest_version(request: Get, subject: str) -> Subject:
    """Return the latest version of a subject. Raises RegistryError."""
    answer = request(f"/subjects/{quote(subject, safe='')}/versions/latest")
    if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str):
        raise RegistryError("answer", "it didn't answer with a schema: is it a schema registry?")
    return Subject(
        version=whole_number(answer, "version"),
        id=whole_number(answer, "id"),
        type=schema_type(answer),
        texts=schema_texts(request, answer),
    )


def _ask(
    query: ResolvedQuery, registry: ResolvedConnection, question: Callable[[Get], Answer], subject: str = ""
) -> Answer:
    """Return the answer. Raises MzplanError."""
    directory, address = query.directory, query.address
    host, port = RegistryServer(url=registry.body["url"], seconds=PROBE_TIMEOUT_S).host_and_port
    try:
        with through_tunnel(registry, host, port, directory, address) as local:
            registry_server = server(registry, directory)
            return question(lambda path: get(registry_server, path, local))
    except RegistryError as problem:
        in_tunnel = tunnel_problem(registry, host, port, directory, address)
        raise MzplanError(in_tunnel or _no_answer(registry, address, subject, problem)) from None


def _no_answer(
    registry: ResolvedConnection, address: Address, subject: str, problem: RegistryError
) -> Diagnostic:
    where = f"{registry.address} ({registry.body['url']})"
    match problem.why:
        case "refused":
            code, summary = "MZ051", "The schema registry refused the credentials"
            hint = f"check user and password of {registry.address}."
        case "forbidden":
            code, hint = "MZ054", "let this user read the subject."
            summary = (
                f"Access to subject {subject} is denied" if subject else "The schema registry denies access"
            )
        case "missing":
            code, summary = "MZ052", f"Subject {subject} does not exist"
            hint = "register the schema there, or name the topic's subject: `subject: NAME`."
        case _:
            code, summary = "MZ050", "The schema registry can't be reached"
            hint = (
                f"check url and tls of {registry.address}, and that the registry runs and is reachable "
                "from where the query runs."
            )
    return Diagnostic(
        code=code,
        kind="unreachable" if problem.why == "unreachable" else "",
        summary=summary,
        detail=f"{where}: {problem.text}.",
        hint=hint,
        address=address,
    )


def _unfit(query: ResolvedQuery, where: str, reasons: list[str], is_warning: bool = False) -> Diagnostic:
    """Return MZ230 as an error, or as a warning if the differences may be intended."""
    more = (
        [f"and {count(len(reasons) - _MAX_REASONS, 'more difference')}"]
        if len(reasons) > _MAX_REASONS
        else []
    )
    shown = "; ".join([*(one_line(reason, _MAX_REASON) for reason in reasons[:_MAX_REASONS]), *more])
    return Diagnostic.of(
        "MZ230.topic-schema",
        severity="warning" if is_warning else "error",
        address=query.address,
        where=where,
        shown=shown,
    )
