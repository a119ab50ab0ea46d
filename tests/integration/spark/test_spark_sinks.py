"""The delta and console sinks, what Spark makes of select and where, and targets divided by columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from mzplan.connectors.delta import sink as delta_sink
from mzplan.schema.description import Description
from tests.integration.spark.test_spark_verify_sinks import compared, numbers, verified
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, drop_file, eventually, refusal

SCHEMA = "id BIGINT, kind STRING, day DATE, at TIMESTAMP, ratio DOUBLE, flat DECIMAL(10,2), sure BOOLEAN"
PARTITIONS = ["kind", "day", "at", "ratio", "flat", "sure"]
# The last three are one folder, and NULL there.
KINDS = ("a b", "a/b=c%", "ü€", " x ", "{1}", None, "", "__HIVE_DEFAULT_PARTITION__")


def table(lab: Lab, path: Path) -> Any:
    return lab.spark.read.format("delta").load(str(path))


def test_delta_append_and_upsert_are_exactly_once(
    lab: Lab, topic: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    twice = ["id", "amount * 2 AS twice"]
    append = lab.delta_sink(source, tmp_path, "all", select=twice, compaction={"min_files": 2})
    upsert = lab.delta_sink(source, tmp_path, "latest", mode="upsert", key=["id"])

    def hold(rows: int, latest: dict[int, str]) -> None:
        eventually(f"{rows} rows are appended", lambda: len(read_delta(tmp_path / "all")) == rows)
        found = tmp_path / "latest"
        eventually("upserted", lambda: {row["id"]: row["customer"] for row in read_delta(found)} == latest)
        lab.finish(append, upsert)
        assert len(read_delta(tmp_path / "all")) == rows

    lab.produce(name, *({"id": i % 4, "customer": f"c{i}", "amount": i} for i in range(20)))
    lab.start(source)
    eventually("the rows are there", lambda: lab.count(source) == 20)
    lab.start(append, upsert)
    eventually("the rows are appended", lambda: len(read_delta(tmp_path / "all")) == 20)
    lab.produce(name, {"id": 0, "customer": "newer", "amount": 50})
    hold(21, {0: "newer", 1: "c17", 2: "c18", 3: "c19"})
    # Small files are merged, if not at once then later, and the table still knows its last step, which runs
    # again.
    with monkeypatch.context() as patch:
        patch.setattr(delta_sink, "merge_small_files", Mock(side_effect=RuntimeError("they were first")))
        told = refusal(lambda: lab.executor.compact(append, lab.secrets))
    assert (told.code, told.detail, told.address) == ("MZ280", "they were first", append.address)
    assert str(lab.executor.compact(append, lab.secrets)).endswith(f"of {tmp_path / 'all'} merged into 1")
    assert lab.executor.compact(append, lab.secrets) is None  # until there are more again
    assert lab.executor.compact(upsert, lab.secrets) is None  # it does not ask for it
    for sink in (append, upsert):
        lab.undo_commit(sink)
    lab.start(append, upsert)
    lab.produce(name, {"id": 0, "customer": "newest", "amount": 50})
    hold(22, {0: "newest", 1: "c17", 2: "c18", 3: "c19"})
    lab.stop(source)
    assert table(lab, tmp_path / "all").columns == ["id", "twice"]
    # One commit a step: the repeated one left none.
    history = lab.spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'latest'}`")
    assert history.where("operation = 'MERGE'").count() == lab.last_step(upsert) + 1


def test_console_shows_rows_with_their_step(
    lab: Lab, topic: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    sink = lab.sink(source, "console", None, rows=2, select=["id"], where="id <> 1")
    lab.start(sink)  # it makes the collection
    eventually("it has looked for rows", lambda: lab.report(sink).triggered)
    lab.produce(name, *({"id": i} for i in range(4)))
    lab.start(source)
    shown: list[str] = []

    def has_shown() -> bool:
        shown.extend(capsys.readouterr().out.splitlines())
        return len(shown) >= 3

    eventually("three lines are shown", has_shown)
    lab.stop(source, sink)
    lab.stop(source)  # again: no error
    step = shown[0].split()[2].rstrip(":")
    assert shown == [
        f'{sink.address} step {step}: {{"id":0}}',
        f'{sink.address} step {step}: {{"id":2}}',
        f"{sink.address} step {step}: … and more (rows: 2)",
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"select": ["id", "amuont"]}, "amuont"),
        ({"select": ["sum(amount)"]}, ""),
        ({"where": "amount"}, "amount"),
        ({"where": "id ="}, ""),
        ({"select": ["id", "`reflect`('java.lang.System', 'nanoTime') AS n"]}, "rights of the runner"),
        ({"where": "try_reflect('java.lang.System', 'nanoTime') > '0'"}, "rights of the runner"),
    ],
    ids=["unknown", "aggregate", "no condition", "syntax", "java in select", "java in where"],
)
def test_select_and_where_are_checked_before_they_run(lab: Lab, body: dict[str, Any], said: str) -> None:
    sink = lab.sink(lab.kafka_source("none"), "console", None, **body)
    assert lab.finds(sink, "MZ019", said).address == sink.address


def test_a_table_whose_columns_have_other_types(lab: Lab, tmp_path: Path) -> None:
    """What Spark would cast in silence, until a value does not fit, is found before; truncate has the table
    take the columns of the sink."""
    orders = tmp_path / "orders"
    orders.mkdir()
    (orders / "0.json").write_text('{"id": 1, "customer": "n/a", "amount": 2}\n')
    source = lab.files_source(orders)
    numbers = ["id", "CAST(amount AS DOUBLE) AS kind", "customer AS gone"]
    before = lab.delta_sink(source, tmp_path, "out", select=numbers)
    lab.start(source, before)
    eventually("the row is there", lambda: len(read_delta(tmp_path / "out")) == 1)
    lab.finish(before)
    other = replace(lab.changed(before, select=["id", "customer AS kind"]), generation=2)
    lab.finds(other, "MZ053", "kind is DOUBLE in the table, but the sink writes STRING")
    after = lab.changed(other, on_replace="truncate")
    assert lab.codes(after) == []
    lab.start(after)
    eventually("its rows alone", lambda: read_delta(tmp_path / "out") == [{"id": 1, "kind": "n/a"}])
    lab.finish(source, after)
    assert lab.codes(after) == []
    types = [type_ for _, type_ in table(lab, tmp_path / "out").dtypes]
    assert types == ["bigint", "string"]


# ── partition_by


class Fed:
    """A source of files, the sinks that read it, and how many rows there are by now."""

    def __init__(self, lab: Lab, folder: Path):
        self.lab, self.folder = lab, folder
        folder.mkdir()
        self.rows = 0
        self.feed()
        self.source = lab.files_source(folder, SCHEMA)
        lab.start(self.source)

    def feed(self) -> None:
        """A row of each kind; every second one has nothing but its id and kind."""
        rows: list[dict[str, Any]] = []
        for number, kind in enumerate(KINDS, self.rows):
            row: dict[str, Any] = {"id": number, "kind": kind}
            if number % 2:
                row |= {"day": "2024-02-29", "at": f"2024-01-02T03:04:05.67890{number % 10}Z", "ratio": -0.5}
                row |= {"flat": "1.50", "sure": True}
            rows.append(row)
        self.rows += len(rows)
        drop_file(self.folder / f"{self.rows}.json", rows)

    def run(self, *sinks: Description) -> None:
        """Until they have written all rows; two of their steps at least are done, and one of them twice."""
        self.lab.start(*sinks)
        self.wait(*sinks)
        self.feed()
        self.finish(*sinks)
        for sink in sinks:
            self.lab.undo_commit(sink)
        self.lab.start(*sinks)
        self.feed()
        self.finish(*sinks)

    def finish(self, *sinks: Description) -> None:
        self.wait(*sinks)
        self.lab.finish(*sinks)

    def wait(self, *sinks: Description) -> None:
        eventually("the rows are there", lambda: self.lab.count(self.source) == self.rows)
        self.lab.read_on(self.source, *sinks)


def require_equal(lab: Lab, sink: Description, rows: int, *, counted: bool = False) -> None:
    steps = verified(lab, sink)
    assert (steps.difference, steps.problems, steps.unrecorded) == (None, (), ()), steps
    assert steps.equal_steps and bool(steps.by_rows) == counted, steps
    content = compared(lab, sink)
    assert (numbers(content), content.expected_rows, content.target_rows) == ((0, 0, 0), rows, rows), content


def partition_columns(path: Path) -> list[str]:
    return DeltaTable(str(path)).metadata().partition_columns


@pytest.mark.nightly
def test_delta_tables_with_partition_columns(lab: Lab, tmp_path: Path) -> None:
    fed = Fed(lab, tmp_path / "inbox")
    few = {"compaction": {"min_files": 2}}
    added = lab.delta_sink(fed.source, tmp_path, "added", partition_by=PARTITIONS, **few)
    some = {"select": ["id", "nullif(kind, 'a b') AS kind", "day"], "where": "id <> 3"}
    made = lab.delta_sink(fed.source, tmp_path, "made", **some, partition_by=["kind", "day"])
    upsert = {"mode": "upsert", "key": ["kind"]}
    latest = lab.delta_sink(fed.source, tmp_path, "latest", **upsert, partition_by=["KIND"])
    fed.run(added, made, latest)
    assert partition_columns(tmp_path / "added") == PARTITIONS
    assert partition_columns(tmp_path / "latest") == ["kind"]
    assert (tmp_path / "added" / "kind=__HIVE_DEFAULT_PARTITION__").is_dir()
    require_equal(lab, added, fed.rows)
    require_equal(lab, made, fed.rows - 1)
    # Of all that are NULL there, the last.
    require_equal(lab, latest, len(KINDS) - 2, counted=True)
    newest = {kind: fed.rows - len(KINDS) + i for i, kind in enumerate(KINDS[:5])} | {None: fed.rows - 1}
    assert {row["kind"]: row["id"] for row in read_delta(tmp_path / "latest")} == newest
    assert "merged into" in str(lab.executor.compact(added, lab.secrets))
    require_equal(lab, added, fed.rows)

    # A table keeps its partition columns, unless it is written anew.
    for sink in (added, latest):
        other = replace(lab.changed(sink, partition_by=["day", "kind"]), generation=2)
        lab.finds(other, "MZ053", "partition_by: [day, kind]")
        anew = lab.changed(other, on_replace="truncate")
        assert lab.codes(anew) == []
        lab.start(anew)
        fed.finish(anew)
        folder = tmp_path / str(sink.body["path"])
        assert partition_columns(folder) == ["day", "kind"]
        is_upsert = sink is latest
        require_equal(lab, anew, len(KINDS) - 2 if is_upsert else fed.rows, counted=is_upsert)
    lab.spark.sql(f"DELETE FROM delta.`{tmp_path / 'made'}` WHERE day IS NULL AND kind = 'ü€'")
    assert compared(lab, made).missing == 3  # one of each feed


@pytest.mark.nightly
def test_files_with_partition_columns(lab: Lab, tmp_path: Path) -> None:
    fed = Fed(lab, tmp_path / "inbox")

    def sink(path: str, **body: Any) -> Description:
        return lab.files_sink(fed.source, tmp_path, path, **body)

    sinks = {
        "parquet": sink("parquet", partition_by=[*PARTITIONS[:-1], "SURE"]),
        "computed": sink("computed", select=["id", "lower(kind) AS kind"], partition_by=["kind"]),
        "json": sink("json", format={"type": "json"}, partition_by=PARTITIONS),
        "csv": sink("csv", format={"type": "csv"}, partition_by=PARTITIONS[:3]),
    }
    fed.run(*sinks.values())
    for kind, one in sinks.items():
        require_equal(lab, one, fed.rows, counted=kind in ("json", "csv"))
    rows = lab.spark.read.schema(SCHEMA).parquet(str(tmp_path / "parquet")).collect()
    assert {row.kind for row in rows} == {*KINDS[:5], None}
    assert {str(row.flat) for row in rows} == {"1.50", "None"}
    for kind, one in sinks.items():
        folder = next((tmp_path / kind).glob("kind=a%2Fb%3Dc%25"))
        next(folder.rglob("part-*")).unlink()
        content = compared(lab, one)
        assert content.missing > 0 and numbers(content)[1:] == (0, 0), (kind, content)
        assert content.not_compared, kind

    (tmp_path / "json" / "kind=mine").mkdir()
    (tmp_path / "json" / "kind=mine" / "mine.json").write_text("{}")
    other = replace(lab.changed(sinks["json"], partition_by=["day"], on_replace="truncate"), generation=2)
    lab.start(other)
    fed.finish(other)
    require_equal(lab, other, fed.rows, counted=True)
    holding = {one.parent.name for one in (tmp_path / "json").rglob("*.json")}
    assert holding == {"day=2024-02-29", "day=__HIVE_DEFAULT_PARTITION__", "kind=mine"}
