"""The topics of a cluster, as sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from confluent_kafka import KafkaException

from mzplan.connectors.api.offers import Offer, declared
from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.registry import ROLE, Subject, latest
from mzplan.connectors.formats.registry_columns import columns_of_subject
from mzplan.connectors.kafka.client import classified
from mzplan.connectors.kafka.probe import INTERNAL, KafkaProbe
from mzplan.model.diagnostics import MzplanError
from mzplan.model.words import first_names

_NO_SCHEMA = "No registry has its schema. To read columns, declare the format: {type: json, schema: …}."
_MAX_NAMES = 8
_FORMATS = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}


def offers(query: ResolvedQuery) -> Sequence[Offer]:
    """Return the topics, with the columns that the query's schema registry has for them.

    Raises MzplanError if the cluster or the registry can't be reached.
    """
    probe = KafkaProbe()
    if (problem := probe.reach(query)) is not None:
        raise MzplanError(problem)
    try:
        topics = probe.client_of(query).admin.list_topics(timeout=PROBE_TIMEOUT_S).topics
    except KafkaException as failure:
        raise classified(query, failure) from None
    return [_offer(query, topic) for topic in sorted(topics) if topic not in INTERNAL]


def _offer(query: ResolvedQuery, topic: str) -> Offer:
    subject = _subject(query, topic)
    if subject is None:
        return Offer(object=topic, body={"topic": topic, "format": {"type": "raw"}}, notes=(_NO_SCHEMA,))
    try:
        if subject.type not in _FORMATS:
            raise ValueError(f"its schema is of type {subject.type}")
        columns, left_out = columns_of_subject(subject)
        if not columns:
            raise ValueError("no column can hold its fields")
    except ValueError as problem:
        note = f"Its schema can't be read as columns: {problem}."
        return Offer(object=topic, body={"topic": topic, "format": {"type": "raw"}}, notes=(note,))
    written = {"type": _FORMATS[subject.type], "schema": declared(columns)}
    registry = {ROLE: query.connections[ROLE].address.name}
    notes = (f"Left out, because no column type holds them: {first_names(left_out, _MAX_NAMES)}.",)
    body = {"topic": topic, **registry, "format": written}
    return Offer(object=topic, body=body, notes=notes if left_out else ())


def _subject(query: ResolvedQuery, topic: str) -> Subject | None:
    """Return the latest schema of the topic's values; None if there is none."""
    if ROLE not in query.connections:
        return None
    try:
        return latest(replace(query, body={"topic": topic}))
    except MzplanError as problem:
        if problem.diagnostics[0].code == "MZ052":  # the subject doesn't exist
            return None
        raise
