"""The content of a sink's target compared with the collection: each row of its steps is to be there once, or
of an upsert the last of each key.

The target is looked at first, at one moment, which says up to which step it has been written; then the
collection is read up to that step, through the sink's select and where as they were when each step began.
Both sides become hashes of rows, which are counted: that needs no order, and no memory beyond Spark's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.api.targets import PLACE, Compared, Content, HoldsContent, incomparable
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import quoted
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.projection import analysed_outputs
from mzplan.spark.verification.wanted_content import MUST, ORDER, WantedContent
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EXAMPLES = 5
_HASH, _MAY, _THERE = "_hash", "_may", "_there"
_WHERE = "_where"  # of a row, for people
_KINDS = ("missing", "doubled", "more")


class ContentComparison:
    """One sink's. `spark`: a session that stays open, else one of its own."""

    def __init__(
        self, description: Description, secrets: Secrets, directory: str, warehouse: str, spark: SparkSession
    ):
        connectors = Connectors()
        source = description.source
        assert source is not None
        self._description, self._spark = description, spark
        self._resolve = partial(resolve, secrets=secrets, directory=directory, warehouse=warehouse)
        self._query = self._resolve(description)
        self._position = connectors.source(source.type).position
        self._sink: SinkConnector = connectors.sink(description.type)
        self._history = StepHistory(warehouse, (description.id, description.generation), source.place)
        self._content: Content | None = None
        self._read: dict[int, int] = {}

    @classmethod
    def open(
        cls, description: Description, secrets: Secrets, directory: str, warehouse: str
    ) -> ContentComparison:
        """With a Spark session in this process. Raises MzplanError, also for a type that can't do it."""
        from mzplan.spark.session import open_session

        query = resolve(description, secrets, directory, warehouse)
        _require_content(query, Connectors().sink(description.type))
        links = query.connections.values()
        pairs = [resource_kind("connection", link.type).packages(link.body) for link in links]
        further = {
            name: tuple(sorted({one for pair in pairs for one in pair[i]}))
            for i, name in enumerate(("spark.jars.packages", "spark.jars.excludes"))
        }
        return cls(description, secrets, directory, warehouse, open_session("mzplan verify", {}, further))

    def close(self) -> None:
        """Leave the target, and end the session."""
        self.leave()
        self._spark.stop()

    def leave(self) -> None:
        """Leave the target."""
        if self._content is not None:
            self._content.close()
            self._content = None

    def rows_read(self) -> int:
        """How many rows of both sides were read by now, as far as Spark says."""
        try:
            context: Any = self._spark.sparkContext._jsc.sc()
            stages = context.statusStore().activeStages()
            for one in (stages.apply(i) for i in range(stages.size())):
                self._read[one.stageId()] = int(one.inputRecords())
        except Exception:  # the session ends meanwhile
            pass
        return sum(self._read.values()) + (self._content.taken() if self._content is not None else 0)

    def compare(self) -> Compared:
        """Raises MzplanError MZ177, and what a server or the storage did."""
        try:
            return self._compare()
        except GoneError as problem:
            raise incomparable(self._query, str(problem)) from None
        except (MzplanError, OSError):
            raise
        except Exception as problem:
            failure = failures.of_exception(problem)
            raise incomparable(self._query, f"{failure.text.rstrip('.')}.", _HINT) from None

    def _compare(self) -> Compared:
        connector = _require_content(self._query, self._sink)
        outputs = analysed_outputs(self._spark, self._query, self._position)
        done = self._history.log.committed()  # before the target is looked at: it has these steps
        self._content = content = connector.content(self._query, outputs, self._spark)
        records = self._history.read().records
        require_steps(self._query, records, content.frontier, done)
        upto = [record for record in records if record.step <= content.frontier]
        first = _first_complete(upto, content)
        found = content.rows(self._spark)
        collection = WantedContent(
            self._query, self._resolve, self._history.collection, self._position, self._spark
        )
        if upto:
            wanted = collection.rows(upto, content, first if first is not None else content.frontier + 1)
        else:
            wanted = collection.none(content)
        counted = _counted(wanted, found, content.keys)
        return Compared(
            address=self._query.address,
            target=self._sink.route(self._query),
            first=first,
            last=content.frontier,
            wanted=counted["wanted"],
            found=counted["found"],
            **{kind: counted[kind] for kind in _KINDS},
            repeats=content.repeats,
            examples={kind: _examples(counted, kind) for kind in _KINDS},
            unseen=tuple(content.unseen),
        )


_HINT = "see that both can be read from here; docs/errors.md has what can't be compared."


def _require_content(query: ResolvedQuery, sink: object) -> HoldsContent:
    if not isinstance(sink, HoldsContent):
        source, type_ = query.description.source, query.description.type
        why = f"What a sink of type {type_} has written can't be read again."
        hint = f"verify its source: mzplan verify {source.address}" if source is not None else ""
        raise incomparable(query, why, hint)
    return sink


def require_steps(query: ResolvedQuery, records: Sequence[StepRecord], frontier: int, done: int) -> None:
    """See that the target has the steps of this checkpoint, and these are known. `frontier`: the last one
    that it says to have; `done`: the last one that Spark had seen through before. Raises MzplanError."""
    known = max((record.step for record in records), default=-1)
    if frontier > known:
        raise incomparable(
            query,
            f"The target has been written up to step {frontier}, and the checkpoint knows the steps up "
            f"to {known}: it was restored from a backup, or another sink writes under this one's name.",
        )
    lacking = [one for one in records if frontier < one.step <= done and one.rows != 0]
    if lacking:
        there = f"only the steps up to {frontier}" if frontier >= 0 else "none of the sink's steps"
        raise incomparable(
            query,
            f"The target has recorded {there}, and by the checkpoint step {lacking[-1].step} was written: it "
            "was restored from a backup, or what it had recorded is gone.",
        )
    if frontier >= 0 and all(one.step != frontier for one in records):
        raise incomparable(query, f"What step {frontier}, the last one in the target, has read is not known.")


def _first_complete(records: Sequence[StepRecord], content: Content) -> int | None:
    """The first step whose rows the target still has all of: of those that began after what it may have
    lost was written."""
    if content.since is None:
        return 0
    young = (r.step for r in records if r.time is not None and r.time > content.since)
    return min(young, default=None)


# ── what differs


def _counted(wanted: DataFrame, found: DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    """The numbers of rows, and examples."""
    from pyspark.sql import functions as f

    columns = [name for name in found.columns if name != PLACE]
    shown = f.to_json(f.struct(*(f.col(quoted(key)).cast("string").alias(key) for key in keys)))
    order = f.col(f"{POSITION}.{ORDER}")
    position = f.concat(f.lit("_position "), f.to_json(order) if _is_struct(wanted) else order.cast("string"))
    must = f.col(MUST) if MUST in wanted.columns else f.lit(True)
    one, none = f.lit(1).cast("bigint"), f.lit(0).cast("bigint")
    ours = wanted.select(
        row_hash(wanted.select(*map(quoted, columns))).alias(_HASH),
        f.when(must, one).otherwise(none).alias(MUST),
        f.when(must, none).otherwise(one).alias(_MAY),
        none.alias(_THERE),
        (shown if keys else position).alias(_WHERE),
    )
    theirs = found.select(
        row_hash(found.drop(PLACE)).alias(_HASH),
        none.alias(MUST),
        none.alias(_MAY),
        one.alias(_THERE),
        (shown if keys else f.coalesce(f.col(PLACE), f.lit("a row"))).alias(_WHERE),
    )
    numbers = [f.sum(name).alias(name) for name in (MUST, _MAY, _THERE)]
    sides = [
        f.max(f.when(f.col(_THERE) == 0, f.col(_WHERE))).alias("_ours"),
        f.max(f.when(f.col(_THERE) == 1, f.col(_WHERE))).alias("_theirs"),
    ]
    each = ours.unionByName(theirs).groupBy(_HASH).agg(*numbers, *sides)
    must_, known, there = f.col(MUST), f.col(MUST) + f.col(_MAY), f.col(_THERE)
    surplus = {
        "missing": f.greatest(must_ - there, none),
        "doubled": f.when(known > 0, f.greatest(there - known, none)).otherwise(none),
        "more": f.when(known == 0, there).otherwise(none),
    }
    totals = [f.sum(known).alias("wanted"), f.sum(there).alias("found")]
    for kind, number in surplus.items():
        totals.append(f.sum(number).alias(kind))
        text = f.col("_ours" if kind == "missing" else "_theirs")
        # A few of them, in one pass and a bounded place: the first of each class.
        totals += [
            f.min(f.when((number > 0) & (f.pmod(f.col(_HASH), f.lit(_EXAMPLES)) == i), text)).alias(
                f"{kind}{i}"
            )
            for i in range(_EXAMPLES)
        ]
    row = each.agg(*totals).first()
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
