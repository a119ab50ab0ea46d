"""Parses given records with a source's format, as the source's query does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.formats.dead_letters import WORD
from mzplan.connectors.formats.parsers import BINARY
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.formats.registry import ROLE
from mzplan.connectors.frames.types import quoted, read_parquet
from mzplan.endpoints.arrow import arrow_schema
from mzplan.model.diagnostics import error
from mzplan.model.trials import GivenRecord
from mzplan.schema.columns import CHANGE, DELETE, POSITION, parse_columns
from mzplan.schema.description import Description
from mzplan.spark import failures
from mzplan.spark.trials.bench import TrialBench
from mzplan.spark.trials.expectations import TrialExpectations
from mzplan.spark.trials.inputs import table_of, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

# The columns of Spark's Kafka source.
_RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_REASON, _OFFSET = "_mzplan_reason", "_mzplan_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecords:
    """The rows of records.

    - `malformed`: the reason for each malformed record, by its number from 1.
    - `violations`: how many rows violate each expectation of the source, by name.
    """

    rows: pa.Table
    malformed: Mapping[int, str]
    violations: Mapping[str, int]


def parse_records(
    bench: TrialBench, description: Description, records: Sequence[GivenRecord]
) -> ParsedRecords:
    """Return the rows of these records. Raises MzplanError.

    A keyed source has the last row of each key.
    """
    connector = bench.connectors.source(description.type)
    query = bench.resolve(description)
    is_text = description.body.get("format", {}).get("type") not in BINARY
    if type(connector).parse is SourceConnector.parse or ROLE in description.connections or not is_text:
        raise error("MZ351.no-records", address=description.address, type=description.type)
    query = replace(query, body={**query.body, "on_error": WORD})
    expectations = TrialExpectations(query)
    with (
        tempfile.TemporaryDirectory(prefix="mzplan-test-") as folder,
        failures.raised_as("MZ063", f"Records of {description.address} can't be parsed", description.address),
    ):
        file = Path(folder, "records.parquet")
        topic = str(query.body.get("topic", ""))
        rows = [_row(record, offset, topic) for offset, record in enumerate(records)]
        write_parquet(file, arrow_schema(parse_columns(_RECORD)), rows)
        parsed = connector.parse(read_parquet(bench.spark, [str(file)], _RECORD), query)
        if expectations.any:
            good = parsed.where(f"{DEAD}.reason IS NULL")
            malformed = parsed.where(f"{DEAD}.reason IS NOT NULL")
            parsed = expectations.checked(good, 0).unionByName(malformed)
        columns = [quoted(name) for name in parsed.columns if name not in (POSITION, DEAD)]
        more = (f"{DEAD}.reason AS {_REASON}", f"{POSITION}.offset AS {_OFFSET}")
        ordered = parsed.orderBy(f"{POSITION}.offset").selectExpr(*columns, *more)
        found: list[dict[str, Any]] = ordered.toArrow().to_pylist()
    rows = [row for row in found if row[_REASON] is None]
    return ParsedRecords(
        rows=table_of(arrow_schema(query.columns), _kept(rows, query.keys)),
        malformed={row[_OFFSET] + 1: row[_REASON] for row in found if row[_REASON] is not None},
        violations=expectations.violations_in(0),
    )


def _row(record: GivenRecord, offset: int, topic: str) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic or topic,
        "partition": 0,
        "offset": offset,
        "timestamp": record.timestamp,
        "timestampType": 0,
        "headers": [{"key": key, "value": value} for key, value in record.headers],
    }


def _kept(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a collection after these changes."""
    if not keys:
        return list(rows)
    by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        by_key.pop(key, None)
        if row[CHANGE] != DELETE:
            by_key[key] = row
    return list(by_key.values())
