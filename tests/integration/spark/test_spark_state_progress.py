"""What Spark's own progress says of a stateful query, for each of its two state stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.model.times import instant
from mzplan.spark.progress import ProgressListener
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state"


@pytest.mark.nightly
@pytest.mark.parametrize("store", ["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"])
def test_a_windowed_aggregation_reports_its_state(lab: Lab, tmp_path: Path, store: str) -> None:
    from pyspark.sql import functions as f

    spark = lab.spark.newSession()
    # Spark tells a listener only of the queries of its own session.
    listener, streams = ProgressListener(), spark._jsparkSession.streams()
    java: Any = spark._jvm
    wrapper = java.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    streams.addListener(wrapper)
    spark.conf.set(PROVIDER, f"{STATE}.{store}")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    folder = tmp_path / "in"
    folder.mkdir()

    def write(number: int, *rows: tuple[str, str]) -> None:
        lines = "\n".join(json.dumps({"k": key, "ts": f"2026-01-01T00:{time}Z"}) for key, time in rows)
        (folder / f".{number}").write_text(lines)
        (folder / f".{number}").rename(folder / f"{number}.json")

    write(0, ("a", "00:00"), ("b", "05:00"))
    rows = spark.readStream.schema("k STRING, ts TIMESTAMP").json(str(folder)).withWatermark("ts", "1 minute")
    counts = rows.groupBy("k", f.window("ts", "1 minute")).count()
    writer = counts.writeStream.format("noop").outputMode("append").trigger(processingTime="100 milliseconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:

        def watermark_is(time: str) -> bool:
            found = listener.get(query.runId)
            seconds = found.watermark_timestamp_seconds if found is not None else None
            return seconds is not None and seconds * 1000 == instant(f"2026-01-01T00:{time}Z")

        until("the first window is closed", lambda: watermark_is("04:00"))
        # Two late rows of one key, which Spark counts once, one of another key, and one that is in time.
        write(1, ("a", "00:00"), ("a", "00:10"), ("c", "01:00"), ("d", "06:00"))
        until("the watermark has followed", lambda: watermark_is("05:00"))
    finally:
        query.stop()
        streams.removeListener(wrapper)
    found = listener.get(query.runId)
    assert found is not None
    assert (found.state_rows, found.late_rows) == (2, 2)
    assert found.state_bytes is not None and found.state_bytes > 0
