"""Steps of sinks verified: what each kind of target has recorded, against the collection, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.connectors.files.manifest import committed_files
from mzplan.model.diagnostics import MzplanError
from mzplan.operations.steps import Verified, _compare, _with_target
from mzplan.schema.description import Description
from mzplan.spark.sink_verification import Downstream
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_history import StepHistory
from tests.integration.spark_lab import until
from tests.unit.reporters import SilentReporter

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
ROWS = 12


def verified(lab: Lab, sink: Description, first: int = 0) -> Verified:
    target = opened(lab, sink)
    assert sink.source is not None
    source = sink.source.id, sink.source.generation
    history = StepHistory(str(lab.folder / "warehouse"), (sink.id, sink.generation), source)
    try:
        records = history.committed(first, None)
        return _compare(sink.address, records, partial(_with_target, target), SilentReporter())
    finally:
        target._spark = None  # it is the lab's
        target.close()


def opened(lab: Lab, sink: Description) -> Downstream:
    warehouse = absolute(str(lab.folder), str(lab.folder / "warehouse"))
    target = Downstream.open(sink, lab.secrets, str(lab.folder), warehouse)
    target._spark = lab.executor._spark
    return target


def test_every_sink_is_as_its_target_has_recorded_it(
    lab: Lab, topic: Make, database: Make, tmp_path: Path
) -> None:
    name, output, keyed, shop = topic(partitions=3), topic(), topic(), database()
    lab.execute(
        shop,
        "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))",
        "CREATE TABLE latest (customer text PRIMARY KEY, id bigint)",
    )
    source = lab.kafka_source(name)
    produced = 0

    def produce() -> None:
        nonlocal produced
        rows = range(produced, produced + ROWS)
        lab.produce(name, *({"id": i, "customer": f"c{i % 5}", "amount": "1.50"} for i in rows))
        produced += ROWS
        until("the rows are there", lambda: lab.count(source) == produced)

    lab.start(source)
    for _ in range(3):
        produce()
    # The sinks begin with a snapshot of several files, one file in a step: the hard case.
    few: dict[str, Any] = {"max_files_per_trigger": 1}
    broker = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    disk = {"type": "files", "path": str(tmp_path)}
    sinks = {
        "kafka": lab.sink(source, "kafka", broker, topic=output, select=["id", "amount * 2 AS twice"], **few),
        "keyed": lab.sink(source, "kafka", broker, topic=keyed, mode="upsert", key=["customer"]),
        "straight": lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", **few),
        "latest": lab.postgres_sink(
            source, shop, "latest", mode="upsert", key=["customer"], select=["customer", "id"]
        ),
        "delta": lab.sink(source, "delta", disk, path="delta", **few),
        "merged": lab.sink(source, "delta", disk, path="merged", mode="upsert", key=["customer"]),
        "files": lab.sink(source, "files", disk, path="files"),
        "lines": lab.sink(source, "files", disk, path="lines", format={"type": "json"}, where="id > 3"),
    }
    lab.start(*sinks.values())
    histories = {
        kind: StepHistory(str(lab.folder / "warehouse"), (sink.id, 1), (source.id, 1))
        for kind, sink in sinks.items()
    }

    def has_read_all() -> bool:
        if not lab.checkpoint_done(source):
            return False
        newest = lab.last_step(source)
        ends = [history.committed(0, None)[-1:] for history in histories.values()]
        return all(end and end[0].sources and end[0].sources[1] == newest for end in ends)

    until("they have read the snapshot", has_read_all, 120)
    for _ in range(2):
        produce()
        until("they have read on", has_read_all, 120)
    lab.stop(source, *sinks.values())

    for kind, sink in sinks.items():
        found = verified(lab, sink)
        assert (found.difference, found.problems, found.unknown) == (None, (), ()), kind
        assert len(found.equal) >= 3, kind
        counted = kind in ("merged", "lines")
        assert bool(found.by_rows) == counted, kind
    assert len(verified(lab, sinks["delta"]).equal) > 5  # one file in a step

    # What the target has recorded is not what the collection makes: the first such step is named.
    ours = f"WHERE sink = '{sinks['latest'].id}'"
    lab.execute(shop, f"UPDATE mzplan.steps SET content_hash = '1:{1:016x}' {ours}")
    difference = verified(lab, sinks["latest"], 1).difference
    assert difference is not None
    assert (difference.step, difference.recorded_hash) == (1, f"1:{1:016x}")
    # A hash of a kind that is not known: its rows are counted.
    lab.execute(shop, f"UPDATE mzplan.steps SET content_hash = '9:x' {ours}")
    assert verified(lab, sinks["latest"]).by_rows
    Path(committed_files(tmp_path / "files")[0]).unlink()
    assert [problem.code for problem in verified(lab, sinks["files"]).problems] == ["MZ091"]
    lab.execute(shop, "DELETE FROM mzplan.steps WHERE step = 0")
    assert verified(lab, sinks["straight"]).unknown == (0,)
    lab.execute(shop, "DROP SCHEMA mzplan CASCADE")
    assert [problem.code for problem in verified(lab, sinks["straight"]).problems] == ["MZ101"]
    for type_, connection, body in (
        ("console", None, {}),
        ("kafka", broker, {"topic": output, "delivery": "at-least-once"}),
    ):
        with pytest.raises(MzplanError) as refused:
            opened(lab, lab.sink(source, type_, connection, **body))
        assert refused.value.diagnostics[0].code == "MZ100"
