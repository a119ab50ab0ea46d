"""Probes a Kafka cluster: whether it answers and accepts the login, and the identity of a topic.

No pyspark. Every request has a time limit, and one admin client serves all queries of a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S, Memo, fingerprint
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import start_over_hint
from mzplan.connectors.kafka.client import (
    Client,
    ClusterError,
    answer,
    classified,
    cluster_error,
    new_client,
    not_allowed,
    options_of,
)
from mzplan.connectors.kafka.options import route
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.words import nearest

# Seconds for which a client, and a failure to reach a cluster, are cached.
_KEEP_CLIENT_S = 60.0
_KEEP_FAILURE_S = 3.0
_NEAR_TIMEOUT_S = 2.0
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # brokers before 2.8 have no topic ids


class KafkaProbe:
    """Probes sources and sinks. Caches clients and failures for a short time, by connection."""

    def __init__(self) -> None:
        self._clients: Memo[Client] = Memo(_KEEP_CLIENT_S)
        self._failures: Memo[ClusterError | None] = Memo(_KEEP_FAILURE_S)

    def probe(self, query: ResolvedQuery, *, writes: bool = False) -> Probe:
        """Check metadata, authentication and the topic, and return its identity. Never raises for a server's
        errors."""
        try:
            return Probe(upstream=self._identity(query, writes))
        except ClusterError as problem:
            return Probe(diagnostics=problem.diagnostics)

    def reach(self, query: ResolvedQuery) -> Diagnostic | None:
        """Return why the cluster doesn't answer or refuses the connection's login, or None."""
        try:
            options = options_of(query)
        except ClusterError as problem:
            return problem.diagnostics[0]
        unreachable = self._reach(fingerprint(options), query, options)
        return unreachable.diagnostics[0] if unreachable is not None else None

    def client_of(self, query: ResolvedQuery) -> Client:
        """Return the client of a query's connection. Raises ClusterError."""
        options = options_of(query)
        return self._client(fingerprint(options), query, options)

    def _identity(self, query: ResolvedQuery, writes: bool) -> dict[str, Any]:
        options = options_of(query)
        key = fingerprint(options)
        failure = self._failures.get(key, lambda: self._reach(key, query, options))
        if failure is not None:  # perhaps found for another query of the connection
            raise ClusterError(replace(failure.diagnostics[0], address=query.address))
        try:
            return identify(self._client(key, query, options), query, writes)
        except ClusterError as problem:
            if problem.kind in ("unreachable", "refused-login"):
                self._failures.put(key, problem)
                self._clients.drop(key)
            raise

    def _reach(self, key: str, query: ResolvedQuery, options: Mapping[str, Any]) -> ClusterError | None:
        """Return why the cluster can't be reached, or None. One thread does this while others wait."""
        try:
            client = self._client(key, query, options)
            answer(client, query, client.admin.describe_cluster(request_timeout=PROBE_TIMEOUT_S))
        except ClusterError as problem:
            self._clients.drop(key)  # otherwise it would keep trying in the background
            return problem
        return None

    def _client(self, key: str, query: ResolvedQuery, options: Mapping[str, Any]) -> Client:
        return self._clients.get(key, lambda: new_client(query, options))


def named_topics(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics that a body names; none for a pattern."""
    return (body["topic"],) if "topic" in body else tuple(body.get("topics", ()))


def topics_in(identity: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the `topic_id` and the number of `partitions` of each topic of an identity."""
    if "topics" in identity:
        return dict(identity["topics"])
    return {identity["topic"]: identity}


def identify(client: Client, query: ResolvedQuery, writes: bool) -> dict[str, Any]:
    """Return the identity of the query's topics. Raises ClusterError.

    For one topic, it is `{type, cluster_id, topic, topic_id, partitions}`; otherwise `{type, cluster_id,
    topics}`, with `topic_id` and `partitions` of each topic by name.
    """
    cluster = client.admin.describe_cluster(request_timeout=PROBE_TIMEOUT_S)
    topics = named_topics(query.body) or _matching(client, query)
    futures = client.admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=PROBE_TIMEOUT_S
    )
    described = {topic: _described(client, query, topic, futures[topic], writes) for topic in topics}
    identity = {"type": "kafka", "cluster_id": answer(client, query, cluster).cluster_id}
    if "topic" in query.body:
        return {**identity, "topic": query.body["topic"], **described[query.body["topic"]]}
    return {**identity, "topics": described}


INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def _matching(client: Client, query: ResolvedQuery) -> list[str]:
    """Return the topics that match the pattern. Raises ClusterError if there are none."""
    pattern = query.body["topic_pattern"]
    try:
        known = client.admin.list_topics(timeout=PROBE_TIMEOUT_S).topics
        # As Spark, leave out the broker's own topics.
        topics = sorted(t for t in known if t not in INTERNAL and re.fullmatch(pattern, t))
    except re.error as problem:
        raise cluster_error(
            query, "MZ052.topic-pattern", pattern=pattern, capitalize=str(problem).capitalize()
        ) from None
    except KafkaException as problem:
        raise classified(query, problem) from None
    if not topics:
        raise cluster_error(query, "MZ052.no-topic", pattern=pattern, route=route(query))
    return topics


def _described(
    client: Client, query: ResolvedQuery, topic: str, future: Future[Any], writes: bool
) -> dict[str, Any]:
    try:
        described = answer(client, query, future, topic)
    except ClusterError as problem:
        missing = problem.diagnostics[0]
        if missing.kind == "not-found" and (near := _near_topic(client, topic)):
            hint = f"did you mean {near}? Otherwise, {missing.hint}"
            raise ClusterError(replace(missing, hint=hint)) from None
        raise
    operations = {operation.name for operation in described.authorized_operations or ()}
    if operations and ("WRITE" if writes else "READ") not in operations:
        raise not_allowed(query, topic)
    topic_id = str(described.topic_id)
    return {
        "topic_id": None if topic_id == _NO_TOPIC_ID else topic_id,
        "partitions": len(described.partitions),
    }


def is_compacted(client: Client, query: ResolvedQuery) -> bool:
    """Whether the query's topic is compacted. False if the login may not see that. Raises ClusterError."""
    topic = ConfigResource(ConfigResource.Type.TOPIC, query.body["topic"])
    (future,) = client.admin.describe_configs([topic], request_timeout=PROBE_TIMEOUT_S).values()
    try:
        policy = answer(client, query, future).get("cleanup.policy")
    except ClusterError as problem:
        if problem.kind == "no-permission":
            return False
        raise
    return policy is not None and "compact" in policy.value.split(",")


def _near_topic(client: Client, topic: str) -> str | None:
    """Return the visible topic with the most similar name, or None. Listing all topics, unlike asking for
    one, creates none."""
    try:
        return nearest(topic, client.admin.list_topics(timeout=_NEAR_TIMEOUT_S).topics)
    except KafkaException:
        return None


def topic_difference(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Return why offsets of the recorded topic are invalid in the found one, or None if they are valid."""
    if recorded.get("cluster_id") and found["cluster_id"] != recorded["cluster_id"]:
        return f"this is Kafka cluster {found['cluster_id']} instead of {recorded['cluster_id']}"
    now = topics_in(found)
    for topic, before in sorted(topics_in(recorded).items()):
        difference = f"topic {topic} is gone" if topic not in now else _difference(topic, before, now[topic])
        if difference is not None:
            return difference
    return None


def _difference(topic: str, recorded: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    if recorded.get("topic_id") and found["topic_id"] and found["topic_id"] != recorded["topic_id"]:
        ids = f"id {found['topic_id']} instead of {recorded['topic_id']}"
        return f"topic {topic} was deleted and created again ({ids})"
    if found["partitions"] < recorded.get("partitions", 0):
        return f"topic {topic} has {found['partitions']} partitions instead of {recorded['partitions']}"
    return None


def compare_upstreams(
    query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
) -> Diagnostic | None:
    """Return MZ043 if offsets of the recorded topic are invalid in the found one, or None."""
    difference = topic_difference(recorded, found)
    if difference is None:
        return None
    return Diagnostic.of(
        "MZ043.read-another-upstream",
        address=query.address,
        route=route(query),
        difference=difference,
        start_over_hint=start_over_hint(query),
    )
