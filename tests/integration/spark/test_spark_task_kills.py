"""Steps that end half-way. kill -9 of the Python process in which a sink's task writes, at each failpoint
inside its transaction; and a step of which not all rows can be read, so that nothing of it is written."""

from __future__ import annotations

from collections import Counter

import pytest

from mzplan.host.failpoints import Failpoint
from tests.integration.committed import committed
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

POINTS = [Failpoint.TASK_BEGUN, Failpoint.TASK_SENT, Failpoint.TASK_NOTED, Failpoint.TASK_COMMITTED]
ROWS = 30


@pytest.mark.nightly
def test_a_task_that_is_killed_anywhere_writes_each_row_once(
    lab: Lab, topic: Make, database: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, output, shop = topic(), topic(), database()
    lab.execute(
        shop,
        "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))",
        "CREATE TABLE staged (id bigint, customer jsonb, amount numeric(10,2))",
    )
    source = lab.kafka_source(name)
    sinks = {
        "kafka": lab.kafka_sink(source, output),
        "straight": lab.postgres_sink(source, shop, "straight"),
        "staged": lab.postgres_sink(source, shop, "staged"),
    }

    def seen() -> dict[str, Counter[int]]:
        found = {"kafka": Counter(value["id"] for _, _, value in committed(lab.kafka.bootstrap, output))}
        for table in ("straight", "staged"):
            found[table] = Counter(id_ for (id_,) in lab.rows(shop, f"SELECT id FROM {table}"))
        return found

    lab.start(source)
    environment = lab.spark.sparkContext.environment
    produced = 0
    for point in POINTS:
        # Staged rows are moved by the driver; and once a step is committed, another attempt finds it so.
        dying = set() if point is Failpoint.TASK_COMMITTED else set(sinks)
        dying -= {"staged"} if point is Failpoint.TASK_NOTED else set()
        lab.produce(name, *({"id": i, "customer": '"c"'} for i in range(produced, produced + ROWS)))
        produced += ROWS
        eventually("the rows are there", lambda: lab.count(source) == produced)  # noqa: B023
        # It is in the environment of the tasks' processes; it kills both attempts that Spark makes.
        monkeypatch.setitem(environment, "MZPLAN_FAILPOINT", point.value)
        lab.start(*sinks.values())
        for kind in dying:
            assert lab.ended(sinks[kind], 150).error, (kind, point)
        for kind in sinks.keys() - dying:
            eventually(f"{kind} goes on", lambda k=kind: seen()[k].total() >= produced, 150)  # type: ignore[misc]  # noqa: B023
            assert lab.report(sinks[kind]).active, (kind, point, lab.report(sinks[kind]).error)
        lab.stop(*sinks.values())
        monkeypatch.delitem(environment, "MZPLAN_FAILPOINT")
        assert all(max(ids.values(), default=1) == 1 for ids in seen().values()), point
        assert {kind for kind, ids in seen().items() if len(ids) < produced} == dying, point
    lab.start(*sinks.values())
    for kind in sinks:
        eventually(f"all rows are in {kind}", lambda kind=kind: seen()[kind] == Counter(range(produced)), 150)  # type: ignore[misc]


BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Of each row: 9 MB in all, more than waits on the way into a task, so that it has begun before they end.
TEXT = "ann " * 7500


@pytest.mark.nightly
def test_a_step_that_can_not_be_read_to_its_end_is_not_written(lab: Lab, topic: Make, database: Make) -> None:
    name, output, shop = topic(partitions=1), topic(), database()
    lab.execute(shop, "CREATE TABLE orders (id bigint, customer text, amount numeric(10,2))")
    source = lab.kafka_source(name)
    lab.start(source)
    for first, last in ((0, 300), (300, 310)):  # two files, of which Spark reads the larger one first
        lab.produce(name, *({"id": i, "customer": TEXT} for i in range(first, last)))
        eventually("the rows are there", lambda last=last: lab.count(source) == last)  # type: ignore[misc]
    lab.finish(source)
    # The newest; a first step without rows has left one that the table does not have.
    lost = max(lab._collection(source).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    away = lost.with_suffix(".away")
    lost.rename(away)

    def seen() -> list[list[int]]:
        """The ids in the topic, and in the table."""
        sent = [value["id"] for _, _, value in committed(lab.kafka.bootstrap, output)]
        return [sorted(sent), sorted(id_ for (id_,) in lab.rows(shop, "SELECT id FROM orders"))]

    sinks = (lab.kafka_sink(source, output), lab.postgres_sink(source, shop, "orders"))
    spark = lab.spark
    before = spark.conf.get(BATCH)
    spark.conf.set(BATCH, "50")  # so that whole batches have come when there are no more
    try:
        lab.start(*sinks)
        for sink in sinks:
            assert lost.name in (lab.ended(sink).error or "")  # why, and not only that rows are missing
        assert seen() == [[], []]
        lab.stop(*sinks)
        away.rename(lost)
        lab.start(*sinks, epoch=2)
        eventually("all rows are there", lambda: all(len(set(ids)) == 310 for ids in seen()))
    finally:
        spark.conf.set(BATCH, str(before))
    assert seen() == [[*range(310)]] * 2
