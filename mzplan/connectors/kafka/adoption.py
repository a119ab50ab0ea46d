"""A kafka source that goes on from the checkpoint of another program's query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.warehouse.foreign_query import Left


class KafkaAdoption:
    """See Adopts: the other query must have read the same topic, and no other."""

    def folder(self, directory: str, connection: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        return None

    def problems(
        self, left: Left, position: Mapping[str, Any], body: Mapping[str, Any], folder: str | None
    ) -> Iterator[str]:
        topics = sorted(position)
        if topics == ["logOffset"] or not all(isinstance(value, dict) for value in position.values()):
            yield "It does not read Kafka."
        elif topics != [body.get("topic")]:
            yield f"It reads the topics {', '.join(topics)}, and the source reads {body.get('topic')}."
