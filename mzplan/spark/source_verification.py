"""Steps of a source read again from its upstream: by Spark, so that records become rows exactly as they did.

What Kafka's records and lines of files mean (numbers, dates, quotes, what is malformed) is what Spark's
parsers make of them; no other parser agrees with them in every corner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mzplan.connectors.api.capabilities import Replays
from mzplan.connectors.api.protocols import ResolvedQuery, resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.formats.dead_letters import WORD
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.folder import is_there
from mzplan.warehouse.replay import GoneError
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkUpstream:
    """The upstream of one source. Implements mzplan.operations.steps.Upstream."""

    def __init__(self, spark: SparkSession, connector: Replays, query: ResolvedQuery, log: CheckpointLog):
        self._spark = spark
        self._connector = connector
        self._query = query
        self._log = log
        self.keeps_positions = connector.keeps_positions

    @classmethod
    def open(
        cls, description: Description, secrets: Secrets, directory: str, warehouse: str
    ) -> SparkUpstream:
        """With a Spark session in this process. Raises MzplanError, also for a type that can't do it."""
        from mzplan.spark.session import open_session

        query = resolve(description, secrets, directory)
        connector = Connectors().source(description.type)
        if not isinstance(connector, Replays):
            raise error(
                "MZ092",
                f"{description.address} can't be read again from its upstream",
                f"A source of type {description.type} keeps no positions that could be read again.",
                "verify without --from-upstream: from its collection.",
                address=description.address,
            )
        if query.keys:
            raise error(
                "MZ202",
                f"{description.address} can't be read again from its upstream",
                "Its collection keeps of each key what a step has changed, and no record that changed "
                "nothing (an older one of the same key, the deletion of a row that was not there): so the "
                "records of a step can't be compared with it.",
                "verify without --from-upstream: from its collection.",
                address=description.address,
            )
        if query.body.get("on_error") == WORD:  # what was kept aside is no row of the collection
            query = replace(query, body={**query.body, "on_error": "skip"})
        log = Checkpoint.of(warehouse, description.id, description.generation).log
        return cls(open_session("mzplan verify", {}), connector, query, log)

    def close(self) -> None:
        """End the session."""
        self._spark.stop()

    def rows(self, record: StepRecord) -> DataFrame:
        """The step's rows. Raises GoneError when what it has read is not known any more."""
        if record.end is None or (record.start is None and self.keeps_positions):
            raise GoneError("Which part of the upstream it has read is not known any more.")
        return self._connector.replay(
            self._spark, self._query, record.start, record.end, lambda: self._files(record)
        )

    def _files(self, record: StepRecord) -> tuple[str, ...]:
        files = self._log.files(record.start, record.end)
        if not files:
            raise GoneError("Which files it has read is not known any more.")
        missing = [file for file in files if not is_there(file)]
        if missing:  # Spark would pass over it
            raise GoneError(f"The upstream: {missing[0]} is gone.")
        return tuple(map(unquote, files))  # a path of Hadoop's is a URI without its escapes

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. What the upstream did is a GoneError: of old records mostly that they are gone."""
        try:
            rows = self.rows(record)
            return content_hash(rows if self.keeps_positions else rows.drop(POSITION))
        except GoneError:
            raise
        except Exception as problem:
            raise GoneError(f"The upstream: {failures.of_exception(problem).text}") from None
