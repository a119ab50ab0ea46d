"""The content of a sink's target compared with the collection: each row of its steps is to be there once, or
of an upsert the last of each key.

The target is looked at first, at one moment, which says up to which step it has been written; then the
collection is read up to that step, through the sink's select and where as they were when each step began.
Both sides become hashes of rows, which are counted: that needs no order, and no memory beyond Spark's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.api.targets import PLACE, Compared, Content, HoldsContent, incomparable
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import ddl, quoted, spark_type
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.projection import analysed_outputs, project
from mzplan.warehouse.checkpoints import Begun
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.file_steps import OLDEST, FileSteps, steps_of_files
from mzplan.warehouse.replay import files_of, versions_of
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

_EXAMPLES = 5
_HASH, _MUST, _MAY, _THERE = "_hash", "_must", "_may", "_there"
_WHERE = "_where"  # of a row, for people
# The first fields of `_position`: the last and the first step that the row may have come with.
_STEP, _NOT_BEFORE, _ORDER = "_step", "_not_before", "_order"
_KINDS = ("missing", "doubled", "more")


@dataclass(frozen=True, slots=True)
class _Description:
    """What a sink was from a step on."""

    first: int
    query: ResolvedQuery


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
        if upto:
            wanted = self._wanted(upto, content, first if first is not None else content.frontier + 1)
        else:
            wanted = self._nothing(content)
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

    # ── what the target should hold

    def _nothing(self, content: Content) -> DataFrame:
        return content.held(project(_positioned(self._empty(), None), self._query), self._query)

    def _empty(self) -> DataFrame:
        return self._spark.createDataFrame([], f"{ddl(self._query.columns)}, {POSITION} {self._position}")

    def _wanted(self, records: Sequence[StepRecord], content: Content, first: int) -> DataFrame:
        """The sink's rows as the target should hold them, with `_position`, and _MUST: whether it must (it
        may have lost those of the steps before `first`)."""
        from pyspark.sql import functions as f

        descriptions = self._descriptions(records[-1].step)
        boundaries = [one.first for one in descriptions[1:]]
        if self._query.keys:
            rows = self._latest_of_collection(records[-1], boundaries, first)
        else:
            steps = steps_of_files(self._history.collection, records)
            self._require_told_apart(steps, boundaries)
            rows = self._added(records[-1], steps)
        made = []
        for i, one in enumerate(descriptions):
            part = rows
            if i > 0:
                part = part.where(f.col(f"{POSITION}.{_STEP}") >= one.first)
            if i + 1 < len(descriptions):
                part = part.where(f.col(f"{POSITION}.{_STEP}") < descriptions[i + 1].first)
            made.append(content.held(project(part, one.query), one.query))
        held = reduce(lambda all_, part: all_.unionByName(part), made)
        if content.keys:
            held = _last_of_each(held, content.keys)
        return held.withColumn(_MUST, f.col(f"{POSITION}.{_NOT_BEFORE}") >= first)

    def _descriptions(self, last: int) -> list[_Description]:
        """What the sink was while it wrote the steps up to the last one, in order."""
        names = resource_kind("sink", self._description.type).row_properties
        begun = self._query.checkpoint.begun().begun if self._query.checkpoint is not None else ()
        rows_now = {name: self._description.body[name] for name in names if name in self._description.body}
        found: list[tuple[Begun, int]] = []
        for one in begun:
            if one.step <= last and (not found or found[-1][0].rows != one.rows):
                found.append((one, one.step))
        if not found or (found[0][1] > 0 and found[0][0].rows != rows_now):
            before = [_Description(OLDEST, self._query)]  # of before there was a history
        else:
            before, found[0] = [], (found[0][0], OLDEST)
        made = (
            _Description(
                step,
                self._resolve(replace(self._description, body=one.body(self._description.body, names))),
            )
            for one, step in found
        )
        return [*before, *made]

    def _require_told_apart(self, steps: FileSteps, boundaries: Sequence[int]) -> None:
        """See that no file has rows of steps that began under two descriptions. Raises GoneError."""
        for boundary in boundaries:
            merged = any(first < boundary <= last for first, last in steps.spans.values())
            if merged or boundary < steps.known_from:
                raise GoneError(
                    f"The sink's select or where was changed at step {boundary}, and which rows of the "
                    "collection came before that is not known any more: their files were merged, or the logs "
                    "of these steps are gone."
                )

    def _added(self, record: StepRecord, steps: FileSteps) -> DataFrame:
        """The rows of a collection that only grows, up to a step."""
        from pyspark.sql import functions as f

        schema = "file STRING, last INT, first INT"
        spans = [(name, last, first) for name, (first, last) in steps.spans.items()]
        known = f.broadcast(self._spark.createDataFrame(spans, schema))
        parts = [_of_files(part, self._query) for part in self._tables(record)]
        rows = reduce(lambda all_, part: all_.unionByName(part), parts) if parts else None
        if rows is None:
            return _positioned(self._empty(), None)
        joined = rows.join(known, rows[PLACE] == known["file"], "left")
        return _positioned(joined, (f.col("last"), f.col("first"))).drop(PLACE, "file", "last", "first")

    def _tables(self, record: StepRecord) -> Iterator[DataFrame]:
        """What a sink has read up to a step: a version of the collection, and files of the next one."""
        end, log = record.end, self._history.collection
        if not isinstance(end, dict) or "reservoirVersion" not in end:
            raise GoneError(
                f"Which part of {log.collection} step {record.step} has read is not known any more."
            )
        version, index = int(end["reservoirVersion"]), int(end["index"])
        start: dict[str, Any] | None = {"reservoirVersion": version, "index": -1}
        if end.get("isStartingVersion"):
            start = None
        elif version > 0:
            reader = self._spark.read.format("delta").option("versionAsOf", version - 1)
            yield reader.load(log.collection)
        if index < 0:
            return
        begun = StepRecord(step=0 if start is None else record.step, start=start, end=end)
        if files := files_of(log, begun):
            schema = f"{ddl(self._query.columns)}, {POSITION} {self._position}"
            yield self._spark.read.schema(schema).option("__globPaths__", "false").parquet(*files)

    def _latest_of_collection(self, record: StepRecord, boundaries: Sequence[int], first: int) -> DataFrame:
        """The rows of a keyed collection after a step: what is deleted or replaced is so in the target."""
        if boundaries:
            raise GoneError(
                f"The sink's select or where was changed at step {boundaries[-1]}, and which rows of a keyed "
                "collection it had written before that is not known."
            )
        if first > 0:
            raise GoneError("Which rows of a keyed collection the target may have lost is not known.")
        lost = {name.lower() for name in self._query.keys} - {
            name.lower() for name in self._query.body.get("key", ())
        }
        if lost:
            raise GoneError(
                f"The key of the sink lacks {', '.join(sorted(lost))} of its source's: which of the rows "
                "that share a key is there depends on what was deleted meanwhile."
            )
        log = self._history.collection
        reader = self._spark.read.format("delta").option("versionAsOf", _whole_version(log, record))
        return _positioned(reader.load(log.collection), None)


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


def _whole_version(log: CollectionLog, record: StepRecord) -> int:
    """The version of a keyed collection that a sink has read to its end. Raises GoneError."""
    end = record.end
    if not isinstance(end, dict) or not end.get("isStartingVersion"):
        return versions_of(log, replace(record, step=0, start=None))[1]
    begun = replace(record, step=0, start=None)
    if len(files_of(log, begun)) < len(files_of(log, replace(begun, end={**end, "index": 2**63}))):
        raise GoneError(f"Step {record.step} has read a part of the snapshot that the sink begins with.")
    return int(end["reservoirVersion"])


def _first_complete(records: Sequence[StepRecord], content: Content) -> int | None:
    """The first step whose rows the target still has all of: of those that began after what it may have
    lost was written."""
    if content.since is None:
        return 0
    young = (r.step for r in records if r.time is not None and r.time > content.since)
    return min(young, default=None)


def _of_files(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """The collection's columns, and the name of the file that a row lies in."""
    from pyspark.sql import functions as f

    there = {name.lower() for name in rows.columns}
    columns = []
    for column in query.columns:
        has = column.name.lower() in there
        value = f.col(quoted(column.name)) if has else f.lit(None).cast(spark_type(column.type))
        columns.append(value.alias(column.name))
    return rows.select(*columns, POSITION, f.col("_metadata.file_name").alias(PLACE))


def _positioned(rows: DataFrame, span: tuple[Expression, Expression] | None) -> DataFrame:
    """`_position` with the last and the first step in front, so that it goes along through a `select`."""
    from pyspark.sql import functions as f

    unknown = f.lit(OLDEST if span is not None else 0)
    last, first = span if span is not None else (unknown, unknown)
    fields = [
        f.coalesce(last, unknown).alias(_STEP),
        f.coalesce(first, unknown).alias(_NOT_BEFORE),
        f.col(POSITION).alias(_ORDER),
    ]
    return rows.withColumn(POSITION, f.struct(*fields))


def _last_of_each(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    order = f.struct(f.col(f"{POSITION}.{_STEP}"), f.col(f"{POSITION}.{_ORDER}"))
    grouped = rows.groupBy(*(f.col(quoted(key)).alias(f"_key{i}") for i, key in enumerate(keys)))
    last = grouped.agg(f.max_by(f.struct(*(quoted(name) for name in rows.columns)), order).alias("_last"))
    return last.select(*(f.col(f"_last.{quoted(name)}").alias(name) for name in rows.columns))


# ── what differs


def _counted(wanted: DataFrame, found: DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    """The numbers of rows, and examples."""
    from pyspark.sql import functions as f

    columns = [name for name in found.columns if name != PLACE]
    shown = f.to_json(f.struct(*(f.col(quoted(key)).cast("string").alias(key) for key in keys)))
    order = f.col(f"{POSITION}.{_ORDER}")
    position = f.concat(f.lit("_position "), f.to_json(order) if _is_struct(wanted) else order.cast("string"))
    must = f.col(_MUST) if _MUST in wanted.columns else f.lit(True)
    one, none = f.lit(1).cast("bigint"), f.lit(0).cast("bigint")
    ours = wanted.select(
        row_hash(wanted.select(*map(quoted, columns))).alias(_HASH),
        f.when(must, one).otherwise(none).alias(_MUST),
        f.when(must, none).otherwise(one).alias(_MAY),
        none.alias(_THERE),
        (shown if keys else position).alias(_WHERE),
    )
    theirs = found.select(
        row_hash(found.drop(PLACE)).alias(_HASH),
        none.alias(_MUST),
        none.alias(_MAY),
        one.alias(_THERE),
        (shown if keys else f.coalesce(f.col(PLACE), f.lit("a row"))).alias(_WHERE),
    )
    numbers = [f.sum(name).alias(name) for name in (_MUST, _MAY, _THERE)]
    sides = [
        f.max(f.when(f.col(_THERE) == 0, f.col(_WHERE))).alias("_ours"),
        f.max(f.when(f.col(_THERE) == 1, f.col(_WHERE))).alias("_theirs"),
    ]
    each = ours.unionByName(theirs).groupBy(_HASH).agg(*numbers, *sides)
    must_, known, there = f.col(_MUST), f.col(_MUST) + f.col(_MAY), f.col(_THERE)
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
    return isinstance(position[_ORDER].dataType, t.StructType)


def _examples(counted: dict[str, Any], kind: str) -> tuple[str, ...]:
    return tuple(str(counted[f"{kind}{i}"]) for i in range(_EXAMPLES) if f"{kind}{i}" in counted)
