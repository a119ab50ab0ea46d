"""Probing a Kafka cluster: is it there, does it accept the login, is the topic there, and which one is it?

No pyspark. Every request has a time limit, and one admin client serves all queries of a connection.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from mzplan.connectors.api.connector import LastTimes
from mzplan.connectors.api.probes import Memo, fingerprint
from mzplan.connectors.api.queries import PROBE_TIMEOUT_S, Probe, ResolvedQuery
from mzplan.connectors.kafka.options import client_body, librdkafka_options
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.times import instant, instant_text
from mzplan.model.words import nearest

# Seconds that a client is kept after it was made, and so is a failure to reach a cluster.
_KEEP_CLIENT_S = 60.0
_KEEP_FAILURE_S = 3.0
_SLICE_S = 0.4
# Reported by the client when nothing listens at any address: waiting for the full time limit is of no use,
# but one retry is (a broker may be restarting).
_GIVE_UP_S = 1.5
NEAR_TIMEOUT_S = 2.0
_SETTING = re.compile(r"\b[a-z]+(?:\.[a-z]+)+\b")
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before 2.8 have none


@dataclass(slots=True)
class _Client:
    """An admin client and its errors, newest last."""

    admin: AdminClient
    problems: list[KafkaError]


class _Record(NamedTuple):
    """Where a record is in its partition, and when it was written (milliseconds since the epoch)."""

    offset: int
    timestamp: int


_NO_RECORD = _Record(-1, -1)


class _Failed(Exception):  # noqa: N818 - a finding on its way to a Diagnostic
    def __init__(self, code: str, summary: str, detail: str, hint: str):
        super().__init__(summary)
        self.code, self.summary, self.detail, self.hint = code, summary, detail, hint


class KafkaProbe:
    """Probes sources and sinks; keeps clients and failures for a short time, by connection."""

    def __init__(self) -> None:
        self._clients: Memo[_Client] = Memo(_KEEP_CLIENT_S)
        self._failures: Memo[_Failed | None] = Memo(_KEEP_FAILURE_S)

    def probe(self, query: ResolvedQuery, *, writes: bool = False) -> Probe:
        """Metadata, authentication and the topic; `upstream`: its identity. Never raises for a server."""
        try:
            return Probe(upstream=self._identity(query, writes))
        except _Failed as found:
            return Probe(diagnostics=(_diagnostic(query, found),))

    def reach(self, query: ResolvedQuery) -> Diagnostic | None:
        """Whether the cluster answers and accepts the connection's login; None if so."""
        try:
            options = _options(query)
        except _Failed as found:
            return _diagnostic(query, found)
        failed = self._reach(fingerprint(options), query, options)
        return _diagnostic(query, failed) if failed is not None else None

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Whether the topic still holds the offsets that come next (MZ067 if not)."""
        topic = query.body["topic"]
        try:
            wanted = _read(position, topic)
        except (ValueError, KeyError):
            return None
        try:
            client = self._client_of(query)
            partitions = _identify(client, query, False)["partitions"]
            there = [partition for partition in wanted if partition < partitions]
            first = _offsets(client, query, topic, there, "earliest")
            end = _offsets(client, query, topic, there, "latest")
        except _Failed as found:
            return _diagnostic(query, found)
        gone = []
        for partition, offset in sorted(wanted.items()):
            if partition >= partitions:
                gone.append(f"partition {partition} is not there, only {partitions} are")
            elif first[partition] > offset:
                gone.append(f"partition {partition}: offsets {offset} to {first[partition] - 1} are gone")
            elif end[partition] < offset:
                gone.append(f"partition {partition}: it ends at offset {end[partition]}, before {offset}")
        return _lost(query, gone) if gone else None

    def backlog(self, query: ResolvedQuery) -> dict[str, int] | None:
        """The records that come next, `{"records": n}`: after the checkpoint, or for a source that has not
        begun where it is to. None where that is not known."""
        topic, log = query.body["topic"], query.checkpoint.log if query.checkpoint else None
        try:
            position = log.entry(log.committed()) if log is not None else None
            read = _read(position, topic)
            client = self._client_of(query)
            partitions = range(_identify(client, query, False)["partitions"])
            end = _offsets(client, query, topic, partitions, "latest")
            if not position and query.body["start_offsets"] == "latest":
                return {"records": 0}
            fresh = [partition for partition in partitions if partition not in read]
            when = instant(query.body["start_offsets"]) if not position else None
            if when is None:
                first = _offsets(client, query, topic, fresh, "earliest") if fresh else {}
            else:
                found = _records_at(client, query, topic, fresh, when)
                first = {p: found[p].offset if p in found else end[p] for p in fresh}
        except (_Failed, ValueError, KeyError, OSError):
            return None
        return {"records": sum(max(0, end[p] - {**first, **read}[p]) for p in partitions)}

    def reposition(
        self,
        query: ResolvedQuery,
        policy: str,
        position: str | None,
        last_times: LastTimes,
    ) -> str:
        """The position from which a moved source goes on: `{"topic": {"0": 17, …}}`. Raises MzplanError."""
        topic = query.body["topic"]
        try:
            client, kept = self._client_of(query), _read(position, topic)
            partitions = sorted(kept) or range(_identify(client, query, False)["partitions"])
            first = _offsets(client, query, topic, partitions, "earliest")
            end = _offsets(client, query, topic, partitions, "latest")
            times = last_times() if policy == "translate-timestamp" else {}
            found = {}
            for partition in partitions:
                if partition in kept and first[partition] <= kept[partition] <= end[partition]:
                    found[partition] = kept[partition]
                elif policy == "reset-latest":
                    found[partition] = end[partition]
                elif times:
                    # Records may be in other partitions there: with the earliest of all times none is lost.
                    earliest = min(times.values())
                    when = times.get(partition, earliest) if position else earliest
                    at = _offset_at(client, query, topic, partition, when)
                    found[partition] = end[partition] if at < 0 else max(at, first[partition])
                else:
                    found[partition] = first[partition]
        except _Failed as failed:
            raise MzplanError(_diagnostic(query, failed)) from None
        return json.dumps({topic: {str(p): offset for p, offset in found.items()}}, separators=(",", ":"))

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The offsets of the records from one time to another (milliseconds since the epoch) that are before
        a position, by partition: `({"topic": {"0": 3}}, {"topic": {"0": 17}})`. Raises MzplanError, MZ277 and
        MZ278 among others."""
        topic = query.body["topic"]
        try:
            read = _read(position, topic)
        except (ValueError, KeyError):  # of another topic: of this one nothing was read
            read = {}
        try:
            client = self._client_of(query)
            partitions = range(_identify(client, query, False)["partitions"])
            first = _offsets(client, query, topic, partitions, "earliest")
            last = _offsets(client, query, topic, partitions, "latest")
            begins = _records_at(client, query, topic, partitions, start)
            ends = _records_at(client, query, topic, partitions, end)
        except _Failed as failed:
            raise MzplanError(_diagnostic(query, failed)) from None
        to = {p: ends[p].offset if p in ends else last[p] for p in begins}
        there = [p for p, record in begins.items() if record.offset < to[p]]
        # The oldest record that there is may not be the oldest that there was: of a partition whose oldest is
        # younger than the range, all of the range may be gone.
        gone = {p: record.timestamp for p, record in begins.items() if 0 < first[p] == record.offset}
        if gone or not there:
            raise MzplanError(_not_in_range(query, start, end, gone))
        to = {p: min(to[p], read.get(p, 0)) for p in there}
        found = sorted(p for p in there if begins[p].offset < to[p])
        if not found:
            raise MzplanError(_not_read_yet(query, start, end))
        return {topic: {str(p): begins[p].offset for p in found}}, {topic: {str(p): to[p] for p in found}}

    def _identity(self, query: ResolvedQuery, writes: bool) -> dict[str, Any]:
        options = _options(query)
        key = fingerprint(options)
        failed = self._failures.get(key, lambda: self._reach(key, query, options))
        if failed is not None:
            raise failed
        try:
            return _identify(self._client(key, options), query, writes)
        except _Failed as found:
            if found.code in ("MZ050", "MZ051"):
                self._failures.put(key, found)
                self._clients.drop(key)
            raise

    def _reach(self, key: str, query: ResolvedQuery, options: Mapping[str, Any]) -> _Failed | None:
        """Why the cluster can't be reached, None if it can; one thread does this for all that wait."""
        try:
            client = self._client(key, options)
            _answer(client, query, client.admin.describe_cluster(request_timeout=PROBE_TIMEOUT_S))
        except _Failed as failed:
            self._clients.drop(key)  # otherwise it would keep trying in the background
            return failed
        return None

    def _client_of(self, query: ResolvedQuery) -> _Client:
        options = _options(query)
        return self._client(fingerprint(options), options)

    def _client(self, key: str, options: Mapping[str, Any]) -> _Client:
        def make() -> _Client:
            _require_token(options)
            problems: list[KafkaError] = []
            settings: dict[str, Any] = {**options, "error_cb": problems.append}
            try:
                return _Client(AdminClient(settings), problems)
            except (KafkaException, ValueError, TypeError) as problem:
                raise _unusable(problem) from None

        return self._clients.get(key, make)


def _options(query: ResolvedQuery) -> dict[str, Any]:
    """Raises _Failed."""
    try:
        return librdkafka_options(client_body(query.link), query.directory)
    except OSError as problem:
        raise _unreadable(query, problem) from None


def _read(position: str | None, topic: str) -> dict[int, int]:
    """Offsets by partition, of an entry of Spark's log. Raises ValueError, KeyError."""
    return {int(p): int(offset) for p, offset in json.loads(position)[topic].items()} if position else {}


def _require_token(options: Mapping[str, Any]) -> None:
    """Get a token before the client needs one: it would wait, and report no reason. Raises _Failed."""
    if "oauth_cb" not in options:
        return
    try:
        options["oauth_cb"]("")
    except ModuleNotFoundError:  # reported as a missing extra
        raise
    except Exception as problem:  # anything that AWS's client raises
        message = str(problem).splitlines()[0][:300] if str(problem) else type(problem).__name__
        raise _Failed(
            "MZ051",
            "AWS gives no credentials for Kafka",
            f"{message.rstrip('.')}.",
            "check the aws connection: its key and role; without a key, where the query runs must have one "
            "(AWS_ACCESS_KEY_ID, an instance profile, …).",
        ) from None


def _identify(client: _Client, query: ResolvedQuery, writes: bool) -> dict[str, Any]:
    """The identity of the query's topic. Raises _Failed."""
    topic = query.body["topic"]
    futures = client.admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=PROBE_TIMEOUT_S
    )
    cluster = client.admin.describe_cluster(request_timeout=PROBE_TIMEOUT_S)
    try:
        found = _answer(client, query, futures[topic])
    except _Failed as failed:
        if failed.code == "MZ052" and (near := _near_topic(client, topic)):
            failed.hint = f"did you mean {near}? Else {failed.hint}"
        raise
    operations = {operation.name for operation in found.authorized_operations or ()}
    if operations and ("WRITE" if writes else "READ") not in operations:
        raise _not_allowed(query, topic)
    topic_id = str(found.topic_id)
    return {
        "type": "kafka",
        "cluster_id": _answer(client, query, cluster).cluster_id,
        "topic": topic,
        "topic_id": None if topic_id == _NO_TOPIC_ID else topic_id,
        "partitions": len(found.partitions),
    }


def _near_topic(client: _Client, topic: str) -> str | None:
    """A topic that this one was probably meant to be, of those that may be seen. Asking for all topics, other
    than for one, creates none."""
    try:
        return nearest(topic, client.admin.list_topics(timeout=NEAR_TIMEOUT_S).topics)
    except KafkaException:
        return None


def _answer(client: _Client, query: ResolvedQuery, future: Future[Any]) -> Any:
    """The result of a future, within the time limit. Raises _Failed. The client is polled meanwhile: it
    reports errors only then. Use describe_… for the metadata of a topic, never list_topics: that may create
    the topic."""
    began, earlier = time.monotonic(), len(client.problems)
    while True:
        try:
            return future.result(_SLICE_S)
        except KafkaException as problem:
            failure: KafkaError | None = problem.args[0]
        except TimeoutError:
            failure = None
        client.admin.poll(0)
        waited = time.monotonic() - began
        problems = client.problems[earlier:]
        names = {problem.name() for problem in problems}
        if (
            failure is not None
            or waited > PROBE_TIMEOUT_S - _SLICE_S
            or names & {"_AUTHENTICATION", "_SSL", "_BAD_MSG"}
            or (waited > _GIVE_UP_S and "_ALL_BROKERS_DOWN" in names)
        ):
            raise _classify(query, failure, problems)


def _offsets(
    client: _Client,
    query: ResolvedQuery,
    topic: str,
    partitions: Iterable[int],
    which: Literal["earliest", "latest"],
) -> dict[int, int]:
    spec: OffsetSpec = getattr(OffsetSpec, which)()
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    futures = client.admin.list_offsets(wanted, request_timeout=PROBE_TIMEOUT_S)
    return {place.partition: _answer(client, query, future).offset for place, future in futures.items()}


def _offset_at(client: _Client, query: ResolvedQuery, topic: str, partition: int, when: int) -> int:
    """The offset of the first record at or after a time (milliseconds since the epoch); -1 for none."""
    return _records_at(client, query, topic, [partition], when).get(partition, _NO_RECORD).offset


def _records_at(
    client: _Client, query: ResolvedQuery, topic: str, partitions: Iterable[int], when: int
) -> dict[int, _Record]:
    """The first record at or after a time (milliseconds since the epoch) of each partition that has one."""
    wanted = {TopicPartition(topic, partition): OffsetSpec.for_timestamp(when) for partition in partitions}
    futures = client.admin.list_offsets(wanted, request_timeout=PROBE_TIMEOUT_S)
    found = {place.partition: _answer(client, query, future) for place, future in futures.items()}
    return {p: _Record(int(one.offset), int(one.timestamp)) for p, one in found.items() if one.offset >= 0}


def compare_upstreams(
    query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
) -> Diagnostic | None:
    """None if offsets of the recorded topic are valid in the one that was found; a Diagnostic otherwise."""
    topic = found["topic"]
    if recorded.get("cluster_id") and found["cluster_id"] != recorded["cluster_id"]:
        what = f"Kafka cluster {found['cluster_id']} instead of {recorded['cluster_id']}"
    elif recorded.get("topic_id") and found["topic_id"] and found["topic_id"] != recorded["topic_id"]:
        ids = f"id {found['topic_id']} instead of {recorded['topic_id']}"
        what = f"topic {topic} was deleted and created again ({ids})"
    elif found["partitions"] < recorded.get("partitions", 0):
        what = f"topic {topic} has {found['partitions']} partitions instead of {recorded['partitions']}"
    else:
        return None
    return Diagnostic(
        code="MZ043",
        summary=f"{query.address} would read another upstream",
        detail=f"{route(query)}: {what}. The checkpoint's offsets belong to the former one, and Spark's "
        "offsets carry no cluster identity: rows would be skipped or read twice, in silence.",
        hint="point the connection back to the former upstream; or say in the source where it is to go on: "
        "on_upstream_change: accept | reset-earliest | reset-latest | translate-timestamp; or let it begin "
        f"anew, with its sinks: mzplan apply --replace {query.address} --allow-replace",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def _lost(query: ResolvedQuery, gone: list[str]) -> Diagnostic:
    return Diagnostic(
        code="MZ067",
        summary=f"{query.address} can't go on where it stopped",
        detail=f"{route(query)}, topic {query.body['topic']}: {'; '.join(gone)}. Records were deleted (by "
        "retention, or by somebody) before they were read.",
        hint="bring them back if you can; or say in the source where it is to go on: on_upstream_change: "
        "reset-earliest | reset-latest | translate-timestamp; or let it begin anew, with its sinks: "
        f"mzplan apply --replace {query.address} --allow-replace",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def _not_in_range(query: ResolvedQuery, start: int, end: int, gone: Mapping[int, int]) -> Diagnostic:
    """MZ277. `gone`: when the oldest record that there is was written, by partition, where the range begins
    with it."""
    wanted = f"from {instant_text(start)} to {instant_text(end)}"
    where = f"{route(query)}, topic {query.body['topic']}"
    if not gone:
        return Diagnostic(
            code="MZ277",
            summary=f"{query.address} has no records {wanted}",
            detail=f"{where}: no record has a timestamp of that range.",
            hint="look at the timestamps of the records; they are the producer's, or the broker's, as the "
            "topic's message.timestamp.type says.",
            address=query.address,
            exit_code=ExitCode.REFUSED,
        )
    oldest = "; ".join(f"partition {p}: the oldest is of {instant_text(t)}" for p, t in sorted(gone.items()))
    return Diagnostic(
        code="MZ277",
        summary=f"Records of {query.address} {wanted} may be gone",
        detail=f"{where}: {oldest}. Older ones were deleted (by retention, or by somebody), and some of them "
        "may have been of that range.",
        hint=f"take the range that is whole: --from {instant_text(max(gone.values()) + 1)} or later.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def _not_read_yet(query: ResolvedQuery, start: int, end: int) -> Diagnostic:
    wanted = f"from {instant_text(start)} to {instant_text(end)}"
    return Diagnostic(
        code="MZ278",
        summary=f"{query.address} has not read the records {wanted} yet",
        detail=f"{route(query)}, topic {query.body['topic']}: they are behind its position, so that it reads "
        "them by itself.",
        hint="wait until it has caught up (mzplan status), if they are to be there twice.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def _classify(query: ResolvedQuery, failure: KafkaError | None, problems: list[KafkaError]) -> _Failed:
    """The client's errors as one of mzplan's codes, for people."""
    by_name = {problem.name(): problem for problem in (*problems, *([failure] if failure else []))}
    where = route(query)
    for name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"):
        if name in by_name:
            return _Failed(
                "MZ051",
                "Kafka refused the credentials",
                f"{where}: {_message(by_name[name])}.",
                "check security.protocol, sasl.mechanism, username and password of the connection.",
            )
    for name in ("_SSL", "_BAD_MSG", "_TRANSPORT"):
        # A broker that requires a client certificate closes the connection; only the text shows why.
        if name in by_name and (name != "_TRANSPORT" or "SSL routines" in by_name[name].str()):
            return _Failed(
                "MZ051",
                "Kafka and the connection don't agree on encryption",
                f"{where}: {_message(by_name[name])}.",
                "check security.protocol, ssl.ca and ssl.certificate of the connection: is this listener "
                "PLAINTEXT or TLS, who signed its certificate, and does it ask for the client's?",
            )
    topic = query.body.get("topic", "")
    if by_name.keys() & {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}:
        return _not_allowed(query, topic)
    if by_name.keys() & {"UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION"}:
        return _no_topic(query, topic)
    known = [by_name[name] for name in ("_RESOLVE", "_TRANSPORT") if name in by_name]
    return _Failed(
        "MZ050",
        "Kafka can't be reached",
        f"{where}: {_message(known[0]) if known else f'no answer within {PROBE_TIMEOUT_S:.0f} s'}.",
        "check brokers of the connection, and that the broker runs and is reachable from here.",
    )


def _message(problem: KafkaError) -> str:
    """librdkafka's message without its thread names and states."""
    text = str(problem.str()).partition(" (after ")[0]
    return text.partition("/bootstrap: ")[2] or text


def _no_topic(query: ResolvedQuery, topic: str) -> _Failed:
    return _Failed(
        "MZ052",
        f"Topic {topic} does not exist",
        f"{route(query)} has no topic {topic!r}; a {query.address.kind} does not create one.",
        f"create it: kafka-topics.sh --bootstrap-server {_first(query)} --create --topic {topic}",
    )


def _not_allowed(query: ResolvedQuery, topic: str) -> _Failed:
    security = query.link.body["security"]
    user = (security.get("sasl") or {}).get("username", "ANONYMOUS")
    done, operation = ("written", "Write") if query.address.kind == "sink" else ("read", "Read")
    return _Failed(
        "MZ054",
        f"Topic {topic} may not be {done}",
        f"{route(query)} does not allow {user!r} to {operation.lower()} it.",
        f"kafka-acls.sh --bootstrap-server {_first(query)} --add --allow-principal User:{user} "
        f"--operation {operation} --operation Describe --topic {topic}",
    )


def _unreadable(query: ResolvedQuery, problem: OSError) -> _Failed:
    return _Failed(
        "MZ051",
        "A TLS file can't be read",
        f"{query.link.address}: {problem.filename}: {problem.strerror}.",
        "ssl.ca and ssl.certificate are PEM files, relative to the project's folder, where the query runs.",
    )


def _unusable(problem: Exception) -> _Failed:
    """librdkafka takes no such setting. What it says may repeat the value: only its name is shown."""
    first = problem.args[0] if problem.args else ""
    text = first.str() if isinstance(first, KafkaError) else str(first)
    named = _SETTING.search(text)
    where = f" {named[0].removesuffix('.pem')}" if named else ""
    return _Failed(
        "MZ174",
        f"The Kafka client can't use{where or ' what the connection says'}",
        "It takes a file of certificates, or a key, only in PEM, and whole."
        if where.startswith(" ssl.")
        else "It was refused before anything was sent.",
        "correct the connection: ssl.ca and ssl.certificate are PEM files where the query runs, ssl.key "
        "a private key in PEM without a passphrase.",
    )


def _first(query: ResolvedQuery) -> str:
    return str(query.link.body["brokers"][0])


def route(query: ResolvedQuery) -> str:
    """The connection and its brokers, for people."""
    return f"{query.link.address} ({', '.join(query.link.body['brokers'])})"


def _diagnostic(query: ResolvedQuery, found: _Failed) -> Diagnostic:
    return Diagnostic(
        code=found.code, summary=found.summary, detail=found.detail, hint=found.hint, address=query.address
    )
