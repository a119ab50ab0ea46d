"""The delta and console sinks, and what Spark makes of select and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from mzplan.connectors.delta import sink as delta_sink
from mzplan.model.diagnostics import MzplanError
from tests.integration.spark_lab import read_delta, until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]


def table(lab: Lab, path: Path) -> Any:
    spark = lab.executor._spark
    assert spark is not None
    return spark.read.format("delta").load(str(path))


def test_delta_append_and_upsert_are_exactly_once(
    lab: Lab, topic: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    folder = {"type": "files", "path": str(tmp_path)}
    twice = ["id", "amount * 2 AS twice"]
    append = lab.sink(source, "delta", folder, path="all", select=twice, compaction={"min_files": 2})
    upsert = lab.sink(source, "delta", folder, path="latest", mode="upsert", key=["id"])

    def appended() -> int:
        return len(read_delta(tmp_path / "all"))

    lab.produce(name, *({"id": i % 4, "customer": f"c{i}", "amount": i} for i in range(20)))
    lab.start(source)
    until("the rows are there", lambda: lab.count(source) == 20)
    lab.start(append, upsert)
    until("the rows are appended", lambda: lab.last_step(append) >= 0 and appended() == 20)
    lab.finish(append, upsert)
    for sink in (append, upsert):
        lab.undo_commit(sink)
    lab.start(append, upsert)
    lab.produce(name, {"id": 0, "customer": "newest", "amount": 50})
    until("the row is appended", lambda: appended() == 21)
    latest = tmp_path / "latest"
    until("it is updated", lambda: [row["customer"] for row in read_delta(latest)].count("newest") == 1)
    lab.finish(source, append, upsert)
    steps = lab.last_step(upsert) + 1
    assert {row.id: row.customer for row in table(lab, tmp_path / "latest").collect()} == {
        0: "newest",
        1: "c17",
        2: "c18",
        3: "c19",
    }
    assert table(lab, tmp_path / "all").columns == ["id", "twice"]
    # Its small files are merged, if not at once then later, and the table still knows its last step.
    with monkeypatch.context() as patch, pytest.raises(MzplanError) as refused:
        patch.setattr(delta_sink, "merge_small_files", Mock(side_effect=RuntimeError("they were first")))
        lab.executor.compact(append, lab.secrets)
    (told,) = refused.value.diagnostics
    assert (told.code, told.detail, told.address) == ("MZ280", "they were first", append.address)
    assert str(lab.executor.compact(append, lab.secrets)).endswith(f"of {tmp_path / 'all'} merged into 1")
    assert lab.executor.compact(append, lab.secrets) is None  # until there are more again
    assert lab.executor.compact(upsert, lab.secrets) is None  # it does not ask for it
    last = lab.undo_commit(append)
    lab.start(append)
    until("the step is done again", lambda: lab.last_step(append) == last)
    lab.finish(append)
    assert appended() == 21
    # One commit a step: the repeated one left none.
    history = lab.executor._spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 'latest'}`")  # type: ignore[union-attr]
    assert history.where("operation = 'MERGE'").count() == steps


def test_console_shows_rows_with_their_step(
    lab: Lab, topic: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    sink = lab.sink(source, "console", None, rows=2, select=["id"], where="id <> 1")
    lab.produce(name, *({"id": i} for i in range(4)))
    lab.start(source, sink)
    shown: list[str] = []

    def has_shown() -> bool:
        shown.extend(capsys.readouterr().out.splitlines())
        return len(shown) >= 3

    until("three lines are shown", has_shown)
    lab.stop(source, sink)
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
def test_select_and_where_are_checked_before_they_run(
    lab: Lab, database: Make, body: dict[str, Any], said: str
) -> None:
    source = lab.kafka_source("none")
    sink = lab.postgres_sink(source, database(), "orders", **body)
    (found,) = lab.check(sink).diagnostics
    assert found.code == "MZ058"
    assert said in found.detail
    assert found.address == sink.address


def test_idle_queries_have_triggered(lab: Lab, topic: Make) -> None:
    source = lab.kafka_source(topic())
    sink = lab.sink(source, "console", None)
    lab.start(sink, source)  # the sink first: it makes the collection
    for query in (source, sink):
        until("it has looked for data", lambda query=query: lab.report(query).triggered)  # type: ignore[misc]
        report = lab.report(query)
        assert (report.active, report.error) == (True, None)
    lab.stop(source, sink)
    lab.stop(source)  # again: no error


def test_no_stream_over_a_collection_outlives_a_new_column(lab: Lab, tmp_path: Path) -> None:
    """Why a plan restarts also the sinks that select other columns: Delta ends them."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"id": 1}')
    source = lab.files_source(inbox, "id BIGINT")
    sink = lab.sink(source, "console", None, select=["id"], where="id > 0")
    lab.start(source, sink)
    until("the sink has a step", lambda: lab.last_step(sink) >= 0)
    lab.stop(source)
    format_ = {"type": "json", "schema": "id BIGINT, note STRING"}
    wider = replace(source, digest="1:b", body={**source.body, "format": format_})
    (inbox / "b.json").write_text('{"id": 2, "note": "x"}')
    lab.start(wider)
    assert "schema" in str(lab.ended(sink).error).lower()
    lab.stop(wider, sink)


def test_a_table_whose_columns_have_other_types(lab: Lab, tmp_path: Path) -> None:
    """What Spark would cast in silence, until a value does not fit, is found before; truncate has the table
    take the columns of the sink."""
    orders = tmp_path / "orders"
    orders.mkdir()
    (orders / "0.json").write_text('{"id": 1, "customer": "n/a", "amount": 2}\n')
    source = lab.files_source(orders)
    folder = {"type": "files", "path": str(tmp_path)}
    numbers = ["id", "CAST(amount AS DOUBLE) AS kind", "customer AS gone"]
    before = lab.sink(source, "delta", folder, path="out", select=numbers)
    lab.start(source, before)
    until("the row is there", lambda: len(read_delta(tmp_path / "out")) == 1)
    lab.finish(before)
    after = replace(before, generation=2, body={**before.body, "select": ["id", "customer AS kind"]})
    (found,) = lab.check(after).diagnostics
    assert found.code == "MZ053" and "kind is DOUBLE there, and the sink writes STRING" in found.detail
    after.body["on_replace"] = "truncate"  # type: ignore[index]
    assert lab.codes(after) == []
    lab.start(after)
    until("its rows alone", lambda: read_delta(tmp_path / "out") == [{"id": 1, "kind": "n/a"}])
    lab.finish(source, after)
    assert lab.codes(after) == []
    assert [field.dataType.simpleString() for field in table(lab, tmp_path / "out").schema] == [
        "bigint",
        "string",
    ]
