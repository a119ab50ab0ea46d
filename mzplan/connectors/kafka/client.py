"""The admin client of a Kafka cluster: waits for its answers, and explains its errors.

No pyspark. Every request has a time limit.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.kafka.options import librdkafka_options, route
from mzplan.model.diagnostics import Diagnostic, MzplanError

_SLICE_S = 0.4
# If no broker listens at any address, the client reports that soon. Waiting for the full time limit doesn't
# help then, but one retry does, because a broker may be restarting.
_GIVE_UP_S = 1.5
# The most bytes of an answer. The longest answer is the list of all topics, in which mzplan searches for a
# similar name if a topic is missing. In Python, a list of short names takes twenty times as much memory.
_MAX_ANSWER_BYTES = 8 << 20
_SETTING = re.compile(r"\b[a-z]+(?:\.[a-z]+)+\b")


@dataclass(slots=True)
class Client:
    """An admin client. `problems`: the errors that it has reported, newest last."""

    admin: AdminClient
    problems: list[KafkaError]


class ClusterError(MzplanError):
    """An error that a cluster reports, or a failure to connect to it. Has one diagnostic, about one query."""


def cluster_error(query: ResolvedQuery, message: str, **values: Any) -> ClusterError:
    """Return a ClusterError of a query."""
    return ClusterError(Diagnostic.of(message, address=query.address, **values))


def new_client(query: ResolvedQuery, options: Mapping[str, Any]) -> Client:
    """Return a client with these settings, which `options_of` returned. Raises ClusterError."""
    _require_token(query, options)
    problems: list[KafkaError] = []
    settings: dict[str, Any] = {
        **options,
        "receive.message.max.bytes": _MAX_ANSWER_BYTES,
        "error_cb": problems.append,
    }
    try:
        return Client(AdminClient(settings), problems)
    except (KafkaException, ValueError, TypeError) as problem:
        raise _unusable(query, problem) from None


def options_of(query: ResolvedQuery) -> dict[str, Any]:
    """Return the client's settings. Raises ClusterError."""
    try:
        return librdkafka_options(query.link, query.directory)
    except OSError as problem:
        raise _unreadable(query, problem) from None


def _require_token(query: ResolvedQuery, options: Mapping[str, Any]) -> None:
    """Get a token before the client needs one, because the client would wait and report no reason. Raises
    ClusterError."""
    if "oauth_cb" not in options:
        return
    try:
        options["oauth_cb"]("")
    except ModuleNotFoundError:  # reported as a missing extra
        raise
    except Exception as problem:  # AWS's client may raise anything
        message = str(problem).splitlines()[0][:300] if str(problem) else type(problem).__name__
        raise cluster_error(query, "MZ051.aws-gives", text=message.rstrip(".")) from None


def answer(client: Client, query: ResolvedQuery, future: Future[Any], topic: str = "") -> Any:
    """Return the result of a future, within the time limit. Raises ClusterError. `topic`: for its message.

    Polls the client meanwhile, because it reports errors only then. Use describe_… for a topic's metadata,
    never list_topics, which may create the topic.
    """
    started_at, known_count = time.monotonic(), len(client.problems)
    while True:
        try:
            return future.result(_SLICE_S)
        except KafkaException as problem:
            failure: KafkaError | None = problem.args[0]
        except TimeoutError:
            failure = None
        client.admin.poll(0)
        waited = time.monotonic() - started_at
        problems = client.problems[known_count:]
        names = {problem.name() for problem in problems}
        if (
            failure is not None
            or waited > PROBE_TIMEOUT_S - _SLICE_S
            or names & {"_AUTHENTICATION", "_SSL", "_BAD_MSG"}
            or (waited > _GIVE_UP_S and "_ALL_BROKERS_DOWN" in names)
        ):
            raise _classify(query, failure, problems, topic)


def _classify(
    query: ResolvedQuery, failure: KafkaError | None, problems: list[KafkaError], topic: str
) -> ClusterError:
    """Return the client's errors as one error with a code of mzplan."""
    by_name = {problem.name(): problem for problem in (*problems, *([failure] if failure else []))}
    where = route(query)
    for name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"):
        if name in by_name:
            return cluster_error(query, "MZ051.kafka-refused", where=where, text=_message(by_name[name]))
    for name in ("_SSL", "_BAD_MSG", "_TRANSPORT"):
        # A broker that requires a client certificate closes the connection; only the text shows why.
        if name in by_name and (name != "_TRANSPORT" or "SSL routines" in by_name[name].str()):
            return cluster_error(query, "MZ051.kafka-connection", where=where, text=_message(by_name[name]))
    topic = topic or query.body.get("topic", "")
    if by_name.keys() & {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}:
        return not_allowed(query, topic)
    if by_name.keys() & {"UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION"}:
        return _no_topic(query, topic)
    causes = [by_name[name] for name in ("_RESOLVE", "_TRANSPORT") if name in by_name]
    return cluster_error(
        query,
        "MZ050.kafka-cannot",
        where=where,
        reason=_message(causes[0]) if causes else f"no answer within {PROBE_TIMEOUT_S:.0f} s",
    )


def classified(query: ResolvedQuery, problem: KafkaException) -> ClusterError:
    """Return a client's error with a code of mzplan."""
    return _classify(query, problem.args[0], [], "")


def _message(problem: KafkaError) -> str:
    """Return librdkafka's message without its thread names and states."""
    text = str(problem.str()).partition(" (after ")[0]
    return text.partition("/bootstrap: ")[2] or text


def _no_topic(query: ResolvedQuery, topic: str) -> ClusterError:
    return cluster_error(
        query,
        "MZ052.topic-not",
        topic=topic,
        route=route(query),
        kind_=query.address.kind,
        first_broker=_first_broker(query),
        quote=shlex.quote(topic),
    )


def not_allowed(query: ResolvedQuery, topic: str) -> ClusterError:
    done, operation = ("written", "Write") if query.address.writes_target else ("read", "Read")
    return cluster_error(
        query,
        "MZ054.topic-not",
        topic=topic,
        done=done,
        route=route(query),
        user_of=user_of(query),
        operation=operation.lower(),
        allow=allow(query),
        acl_operation=operation,
        quote=shlex.quote(topic),
    )


def allow(query: ResolvedQuery) -> str:
    """Return the start of a command that grants a right to the connection's user."""
    user = shlex.quote(f"User:{user_of(query)}")
    return f"kafka-acls.sh --bootstrap-server {_first_broker(query)} --add --allow-principal {user}"


def user_of(query: ResolvedQuery) -> str:
    """Return the connection's user as the brokers know it."""
    return str((query.link.body["security"].get("sasl") or {}).get("username", "ANONYMOUS"))


def _unreadable(query: ResolvedQuery, problem: OSError) -> ClusterError:
    return cluster_error(
        query,
        "MZ051.tls-file",
        resource=query.link.address,
        filename=problem.filename,
        strerror=problem.strerror,
    )


def _unusable(query: ResolvedQuery, problem: Exception) -> ClusterError:
    """Return MZ174 for a setting that librdkafka refuses. Shows only its name, because librdkafka's message
    may repeat the value."""
    first = problem.args[0] if problem.args else ""
    text = first.str() if isinstance(first, KafkaError) else str(first)
    setting = _SETTING.search(text)
    where = f" {setting[0].removesuffix('.pem')}" if setting else ""
    return cluster_error(
        query, "MZ174.kafka-client" if where.startswith(" ssl.") else "MZ174.kafka-client-cannot", where=where
    )


def _first_broker(query: ResolvedQuery) -> str:
    """Return a broker, quoted for a shell."""
    return shlex.quote(str(query.link.body["brokers"][0]))
