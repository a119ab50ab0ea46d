"""How much of a source's first copy its checkpoint has read, for each type of source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.catalogue import Connectors
from mzplan.endpoints.steplog import StepLog
from mzplan.model.address import Address
from mzplan.model.losses import FirstCopy
from mzplan.schema.description import Description
from mzplan.spark.maintenance import first_copy
from mzplan.warehouse.checkpoints import Checkpoint

KAFKA = {"topic": "t", "connection": "k", "max_offsets_per_trigger": 10}
FILES = {"connection": "f", "path": "in", "max_files_per_trigger": 2}
POSTGRES = {"connection": "p", "tables": ["public.a", "public.b"]}


class Written:
    """The checkpoint of a source in a warehouse."""

    def __init__(self, warehouse: Path, type_: str, body: dict[str, Any]):
        self.warehouse = str(warehouse)
        self.query = Description(
            address=Address("source", "s"), id="s", generation=1, digest="1:a", type=type_, body=body
        )
        self.checkpoint = Checkpoint.of(self.warehouse, "s", 1)
        self.spark = Path(self.checkpoint.spark)

    def start(self, end: Any = None) -> None:
        self.spark.mkdir(parents=True)
        (self.spark / "metadata").write_text('{"id": "q"}')
        if end is not None:
            self.checkpoint.record_first_end(end)

    def step(self, step: int, position: Any, *files: str) -> None:
        """Write a step; `files` are those that a files source has read in it."""
        entries = [json.dumps({"path": f, "timestamp": 1, "batchId": step}) for f in files]
        written = {"offsets": ["v1", "{}", json.dumps(position)], "commits": ["v1", "{}"]}
        for folder, lines in {**written, **({"sources/0": ["v1", *entries]} if files else {})}.items():
            (self.spark / folder).mkdir(parents=True, exist_ok=True)
            (self.spark / folder / str(step)).write_text("\n".join(lines))

    def copy(self) -> FirstCopy:
        return first_copy(self.warehouse, self.query, Connectors())

    def progress(self) -> str:
        copy = self.copy()
        return "complete" if copy.is_complete() else copy.progress()


@pytest.mark.parametrize("type_", ["kafka", "files", "delta", "local", "postgres"])
def test_a_source_without_a_step_has_no_first_copy(tmp_path: Path, type_: str) -> None:
    written = Written(tmp_path, type_, POSTGRES if type_ == "postgres" else {})
    assert written.progress() == "it hasn't begun"
    written.start()
    assert written.progress() == "it is being read"


def test_kafka_reads_up_to_the_offsets_of_its_first_start(tmp_path: Path) -> None:
    written = Written(tmp_path, "kafka", KAFKA)
    written.start({"0": 30, "1": 5})
    (written.spark / "sources/0").mkdir(parents=True)
    (written.spark / "sources/0/0").write_text('0v1\n{"t":{"0":10,"1":0}}')
    written.step(0, {"t": {"0": 20, "1": 0}})
    assert written.progress() == "10 of 25 records are read"
    written.step(1, {"t": {"0": 40, "1": 4}})
    assert written.progress() == "24 of 25 records are read"
    written.step(2, {"t": {"0": 40, "1": 5}})
    assert written.progress() == "complete"


def test_kafka_reads_up_to_the_offsets_of_each_topic(tmp_path: Path) -> None:
    written = Written(
        tmp_path, "kafka", {"topics": ["t", "u"], "connection": "k", "max_offsets_per_trigger": 10}
    )
    written.start({"t": {"0": 30}, "u": {"0": 5}})
    written.step(0, {"t": {"0": 20}, "u": {"0": 0}})
    assert written.progress() == "20 of 35 records are read"
    written.step(1, {"t": {"0": 40}, "u": {"0": 5}})
    assert written.progress() == "complete"


def test_without_a_limit_the_first_step_of_kafka_reads_everything(tmp_path: Path) -> None:
    written = Written(tmp_path, "kafka", KAFKA)
    written.start()
    written.step(0, {"t": {"0": 1}})
    assert written.progress() == "complete"


def test_files_are_counted_until_a_step_had_room_for_more(tmp_path: Path) -> None:
    written = Written(tmp_path, "files", FILES)
    written.start({"files": 4})
    written.step(0, {"logOffset": 0}, "a", "b")
    assert written.progress() == "2 of 4 files are read"
    written.step(1, {"logOffset": 1}, "c")  # somebody has removed the fourth
    assert written.progress() == "complete"


def test_delta_has_its_first_copy_after_the_initial_snapshot(tmp_path: Path) -> None:
    written = Written(tmp_path, "delta", {})
    written.start()
    written.step(0, {"reservoirVersion": 7, "index": 999, "isStartingVersion": True})
    assert written.progress() == "it is being read"
    written.step(1, {"reservoirVersion": 8, "index": -1, "isStartingVersion": False})
    assert written.progress() == "complete"


def test_a_local_source_reads_the_appends_that_were_there(tmp_path: Path) -> None:
    written = Written(tmp_path, "local", {})
    written.start(3)
    written.step(0, {"step": 1})
    assert written.progress() == "1 of 3 steps are read"
    written.step(1, {"step": 5})
    assert written.progress() == "complete"


def test_postgres_reads_the_blocks_of_all_tables(tmp_path: Path) -> None:
    def note(kind: str, read: int, *chunks: tuple[int, int], tables: str = "ab") -> dict[str, Any]:
        files = [{"relation": ["public", "a"], "file": 1, "blocks": 8, "next": read}]
        found = {"public.a": files, "public.b": []}
        return {
            "kind": kind,
            "tables": {f"public.{name}": found[f"public.{name}"] for name in tables},
            "chunks": [{"first": first, "end": end} for first, end in chunks],
        }

    written = Written(tmp_path, "postgres", POSTGRES)
    written.start()
    log = StepLog(written.checkpoint.steps)
    log.append(0, note("snapshot", 4, (0, 4)))
    written.step(0, {"step": 1})
    assert written.progress() == "4 of 8 blocks are read"
    log.append(1, note("snapshot", 8, (4, 8)))
    assert written.progress() == "4 of 8 blocks are read"  # the step isn't committed
    written.step(1, {"step": 2})
    assert written.progress() == "complete"
    log.append(2, note("changes", 8))  # changes follow, committed or not
    assert written.progress() == "complete"
    log.append(3, note("changes", 8, tables="a"))  # another table is declared, and not read yet
    assert written.progress() == "it is being read"


def test_kafka_names_its_positions_by_topic_id(tmp_path: Path) -> None:
    written = Written(tmp_path, "kafka", {**KAFKA, "topic": "t"})
    written.start()
    written.step(0, {"t": {"0": 20, "1": 7}})
    assert written.copy().positions == {}  # the topic's identity isn't recorded yet
    written.checkpoint.record_upstream({"topic": "t", "topic_id": "x", "partitions": 2})
    assert written.copy().positions == {"x/0": 20, "x/1": 7}


def test_delta_names_its_position_by_table(tmp_path: Path) -> None:
    written = Written(tmp_path, "delta", {})
    written.start()
    written.step(0, {"reservoirId": "x", "reservoirVersion": 8, "index": -1, "isStartingVersion": False})
    assert written.copy().positions == {"x": 7}


def test_postgres_has_read_its_tables_up_to_the_last_committed_step(tmp_path: Path) -> None:
    def note(kind: str, after: str, to: str) -> dict[str, Any]:
        return {"kind": kind, "after": after, "to": to, "tables": {"public.a": []}, "chunks": []}

    written = Written(tmp_path, "postgres", {**POSTGRES, "tables": ["public.a"]})
    written.start()
    written.checkpoint.record_upstream({"system_identifier": "7", "database_oid": 5})
    log = StepLog(written.checkpoint.steps)
    log.append(0, note("snapshot", "0/A", "0/A"))
    written.step(0, {"step": 1})
    assert written.copy().positions == {"7/5": 10}
    log.append(1, note("changes", "0/B", "0/F"))
    assert written.copy().positions == {"7/5": 11}
    written.step(1, {"step": 2})
    assert written.copy().positions == {"7/5": 15}


def test_files_are_behind_until_a_step_had_room_for_more(tmp_path: Path) -> None:
    written = Written(tmp_path, "files", FILES)
    written.start({"files": 2})
    written.step(0, {"logOffset": 0}, "a", "b")
    assert written.copy().is_complete() and written.copy().is_behind
    written.step(1, {"logOffset": 1}, "c")
    assert not written.copy().is_behind
