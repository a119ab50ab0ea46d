"""The kafka source as one whose checkpoint can be moved to another upstream (`on_upstream_change`)."""

from __future__ import annotations

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.api.upstream_change import LastTimes
from mzplan.connectors.kafka.source import KafkaSource


class MovableKafkaSource(KafkaSource):
    """A source that can say where it would go on in another topic, or in one that has lost records."""

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Where to go on, as an entry of Spark's offset log. `position`: on the same topic, only what it no
        longer holds of it is moved. Raises MzplanError."""
        return self._probe.reposition(query, policy, position, last_times)
