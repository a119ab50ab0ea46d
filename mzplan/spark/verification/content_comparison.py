"""Compares the content of a sink's target with the collection.

The target must hold each row of the sink's steps once; for an upsert, the last row of each key. Both sides
become counted row hashes, which needs no order, and no memory beyond Spark's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.targets import PLACE, ComparisonResult, incomparable
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import quoted
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION
from mzplan.schema.kinds import resource_kind
from mzplan.spark import failures
from mzplan.spark.process.command_session import QueryToVerify, close_command_session
from mzplan.spark.verification.sink_content import SinkContent, require_content
from mzplan.spark.verification.wanted_content import MUST, ORDER
from mzplan.warehouse.damage import GoneError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXAMPLES = 5
_HASH, _MAY, _HELD = "_hash", "_may", "_held"
_WHERE = "_where"  # how messages name a row
_KINDS = ("missing", "doubled", "more")


class ContentComparison:
    """Compares the content of one sink. `close` also closes the session `spark`."""

    def __init__(self, verified: QueryToVerify, spark: SparkSession):
        description, warehouse = verified.description, verified.warehouse
        self._sink_content = SinkContent(description, verified.resolve, Connectors(), warehouse, spark)
        self._spark = spark
        self._read: dict[int, int] = {}

    @classmethod
    def open(cls, verified: QueryToVerify) -> ContentComparison:
        """Open a Spark session in this process.

        Raises MzplanError, also for a type without readable content.
        """
        query = verified.resolve()
        require_content(query, Connectors().sink(query.description.type))
        links = query.connections.values()
        pairs = [resource_kind("connection", link.type).packages(link.body) for link in links]
        packages = {
            name: tuple(sorted({artifact for pair in pairs for artifact in pair[i]}))
            for i, name in enumerate(("spark.jars.packages", "spark.jars.excludes"))
        }
        return cls(verified, verified.open_session(packages))

    def close(self) -> None:
        """Close the target and the session."""
        self.leave()
        close_command_session(self._spark)

    def leave(self) -> None:
        """Close the target."""
        self._sink_content.leave()

    def rows_read(self) -> int:
        """Return how many rows of both sides have been read so far, as far as Spark reports it."""
        try:
            context: Any = self._spark.sparkContext._jsc.sc()
            stages = context.statusStore().activeStages()
            for stage in (stages.apply(i) for i in range(stages.size())):
                self._read[stage.stageId()] = int(stage.inputRecords())
        except Exception:  # the session may be closing
            pass
        content = self._sink_content.content
        return sum(self._read.values()) + (content.rows_read() if content is not None else 0)

    def compare(self) -> ComparisonResult:
        """Compare both sides. Raises MzplanError MZ177, and the errors of a server or the storage."""
        try:
            return self._compare()
        except GoneError as problem:
            raise incomparable(self._sink_content.query, str(problem)) from None
        except (MzplanError, OSError):
            raise
        except Exception as problem:
            failure = failures.of_exception(problem)
            raise incomparable(self._sink_content.query, f"{failure.text.rstrip('.')}.", _HINT) from None

    def _compare(self) -> ComparisonResult:
        sides, query = self._sink_content.sides(), self._sink_content.query
        content = sides.content
        counted = _counted(sides.expected, sides.actual, content.keys)
        return ComparisonResult(
            address=query.address,
            target=self._sink_content.sink.route(query),
            first=sides.first,
            last=content.frontier,
            expected_rows=counted["wanted"],
            target_rows=counted["found"],
            **{kind: counted[kind] for kind in _KINDS},
            repeats=content.repeats,
            examples={kind: _examples(counted, kind) for kind in _KINDS},
            not_compared=tuple(content.not_compared),
        )


_HINT = "check that both can be read from here; docs/errors.md lists what can't be compared."


def _counted(expected: DataFrame, actual: DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    """Return the row counts and examples.

    For each row hash, counts the rows that the target must hold, other rows that it may hold, and the rows
    that it holds.
    """
    from pyspark.sql import functions as f

    columns = [name for name in actual.columns if name != PLACE]
    key = f.to_json(f.struct(*(f.col(quoted(key)).cast("string").alias(key) for key in keys)))
    order = f.col(f"{POSITION}.{ORDER}")
    order_text = f.to_json(order) if _is_struct(expected) else order.cast("string")
    must = f.col(MUST) if MUST in expected.columns else f.lit(True)
    one, none = f.lit(1).cast("bigint"), f.lit(0).cast("bigint")
    in_collection = expected.select(
        row_hash(expected.select(*map(quoted, columns))).alias(_HASH),
        f.when(must, one).otherwise(none).alias(MUST),
        f.when(must, none).otherwise(one).alias(_MAY),
        none.alias(_HELD),
        (key if keys else f.concat(f.lit("_position "), order_text)).alias(_WHERE),
    )
    in_target = actual.select(
        row_hash(actual.drop(PLACE)).alias(_HASH),
        none.alias(MUST),
        none.alias(_MAY),
        one.alias(_HELD),
        (key if keys else f.coalesce(f.col(PLACE), f.lit("a row"))).alias(_WHERE),
    )
    numbers = [f.sum(name).alias(name) for name in (MUST, _MAY, _HELD)]
    places = [
        f.max(f.when(f.col(_HELD) == 0, f.col(_WHERE))).alias("_in_collection"),
        f.max(f.when(f.col(_HELD) == 1, f.col(_WHERE))).alias("_in_target"),
    ]
    counts = in_collection.unionByName(in_target).groupBy(_HASH).agg(*numbers, *places)
    must_, known, held = f.col(MUST), f.col(MUST) + f.col(_MAY), f.col(_HELD)
    differences = {
        "missing": f.greatest(must_ - held, none),
        "doubled": f.when(known > 0, f.greatest(held - known, none)).otherwise(none),
        "more": f.when(known == 0, held).otherwise(none),
    }
    totals = [f.sum(known).alias("wanted"), f.sum(held).alias("found")]
    for kind, number in differences.items():
        totals.append(f.sum(number).alias(kind))
        text = f.col("_in_collection" if kind == "missing" else "_in_target")
        # Collect a few examples in one pass and bounded memory: the first of each class of hashes.
        totals += [
            f.min(f.when((number > 0) & (f.pmod(f.col(_HASH), f.lit(_EXAMPLES)) == i), text)).alias(
                f"{kind}{i}"
            )
            for i in range(_EXAMPLES)
        ]
    row = counts.agg(*totals).first()
    assert row is not None
    counted = row.asDict()
    return {name: counted[name] or 0 for name in ("wanted", "found", *_KINDS)} | {
        name: value for name, value in counted.items() if value and name[-1].isdigit()
    }


def _is_struct(rows: DataFrame) -> bool:
    from pyspark.sql import types as t

    position: Any = rows.schema[POSITION].dataType
    return isinstance(position[ORDER].dataType, t.StructType)


def _examples(counted: dict[str, Any], kind: str) -> tuple[str, ...]:
    return tuple(str(counted[f"{kind}{i}"]) for i in range(_EXAMPLES) if f"{kind}{i}" in counted)
