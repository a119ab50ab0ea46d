"""mzplan.spark without Spark: Java, a Spark that does not start, checkpoints, failures, progress."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.controller.executor import ExecutorContext, QueryName
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Observation
from mzplan.model.state import ProjectStatus, QueryStatus, ResourceState
from mzplan.render.status import render_status, status_to_json
from mzplan.spark import failures
from mzplan.spark.executor import SparkExecutor
from mzplan.spark.java import require_java
from mzplan.spark.progress import Progress, ProgressListener, parse_progress
from mzplan.spark.projection import outputs_of
from mzplan.spark.query import RunningQuery
from mzplan.spark.session import _not_started
from mzplan.spark.settings import configuration_of, local_settings
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.storage import is_untouched


def test_a_run_that_finds_nothing_to_do_has_the_step_of_the_run_before() -> None:
    name = QueryName(project="p", address=Address.parse("sink.a"), generation=1, digest="1:f")
    running = RunningQuery(name, "somewhere", step=7)
    assert [running.report(Progress(step=step)).step for step in (-1, 8)] == [7, 8]


def test_a_run_that_was_idle_has_triggered_while_it_writes_its_first_rows() -> None:
    """Spark reports a trigger without data only after ten seconds; status would go back to `starting`."""
    said = ["Initializing sources", "Waiting for data to arrive", "Processing new data"]
    running = a_run(said)
    triggered = []
    for _ in range(3):
        assert not running.look(None)
        triggered.append(running.report(None).triggered)
    assert triggered == [False, True, True]
    assert said == ["Processing new data"]  # it is not asked any more


def test_a_run_whose_report_is_on_its_way_was_not_idle() -> None:
    """Else it would be said that it has read nothing, and its command would end with that."""
    running = a_run(["Waiting for next trigger"] * 3)
    assert not running.look(None) and running.report(None).triggered
    for durations, triggered in (("addBatch", False), ("latestOffset", True)):  # Spark keeps idle ones, too
        told = SimpleNamespace(containsKey=durations.__eq__)
        last = SimpleNamespace(durationMs=lambda told=told: told)
        running = a_run(["Waiting for next trigger"] * 3, last=last)
        assert not running.look(None) and running.report(None).triggered == triggered
        assert running.report(Progress(step=1)).triggered


def a_run(said: list[str], run_id: str = "r", last: object = None) -> RunningQuery:
    """A query of which Spark says that, one after the other; it has ended when nothing is left."""
    status = SimpleNamespace(message=lambda: said.pop(0))
    java = SimpleNamespace(
        isActive=lambda: bool(said),
        status=lambda: status,
        lastProgress=lambda: last,
        exception=lambda: SimpleNamespace(isEmpty=lambda: True),
    )
    name = QueryName(project="shop", address=Address("sink", run_id), generation=1, digest="1:a")
    return RunningQuery(name, "somewhere", java=java, run_id=run_id)


def test_of_many_queries_some_are_asked_at_each_look_and_those_that_have_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.spark.executor._POLL_SECONDS", 0.0)
    executor = SparkExecutor(ExecutorContext(project="shop", directory=str(tmp_path), warehouse="./w"))
    said: dict[str, list[str]] = {f"q{n}": ["Initializing sources"] * 100 for n in range(40)}
    for run_id, words in said.items():
        running = a_run(words, run_id)
        executor._running[running.name] = running
        executor._progress.follow(run_id)

    def asked() -> int:
        before = sum(map(len, said.values()))
        executor.reports()
        return before - sum(map(len, said.values()))

    assert [asked() for _ in range(11)] == [4] * 11
    assert sorted(map(len, said.values())) == [98] * 4 + [99] * 36  # each once, then the first again
    said["q30"].clear()
    executor._progress.onQueryTerminated(
        SimpleNamespace(runId=lambda: SimpleNamespace(toString=lambda: "q30"))
    )
    assert [r.run_id for r in executor.reports() if not r.active] == ["q30"]


def test_an_end_that_was_not_announced_is_found_beside_long_first_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.spark.executor._POLL_SECONDS", 0.0)
    executor = SparkExecutor(ExecutorContext(project="shop", directory=str(tmp_path), warehouse="./w"))
    first = [a_run(["Processing new data"] * 100, f"q{n}") for n in range(20)]
    steady, over = a_run(["Processing new data"] * 100, "steady"), a_run([], "over")
    steady.was_idle = over.was_idle = True
    for running in (queries := [*first, steady, over]):
        executor._progress.follow(running.run_id)
    found = [executor._poll(queries, dict.fromkeys(q.run_id for q in queries)) for _ in range(3)]
    assert over.end_failure is not None and found.count(True) == 1
    assert sum(one.asked_at > 0 for one in first) == 9  # three at each look


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`java(text)` puts a java on the PATH that says so of its version."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(text: str) -> Path:
        program = tmp_path / "java"
        program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        program.chmod(0o755)
        return program

    return make


def test_java_is_found(java: Any) -> None:
    for version in ("17.0.15", "21", "24.0.1"):
        program = java(f'openjdk version "{version}" 2025-04-15')
        assert require_java() == str(program)


@pytest.mark.parametrize("text", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "oops"])
def test_java_that_will_not_do(java: Any, text: str) -> None:
    java(text)
    with pytest.raises(MzplanError) as caught:
        require_java()
    (found,) = caught.value.diagnostics
    assert found.code == "MZ061"
    assert "JDK 17 or 21" in found.hint


def test_no_java(java: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MzplanError) as caught:
        require_java()
    assert "on the PATH" in caught.value.diagnostics[0].detail
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(MzplanError) as caught:
        require_java()
    assert "JAVA_HOME (/nowhere)" in caught.value.diagnostics[0].detail


def test_a_broken_local_maven_cache_is_explained() -> None:
    lines = [
        "\tfound org.apache.commons#commons-pool2;2.12.0 in local-m2-cache",
        "\t==== local-m2-cache: tried",
        "\t\t::              FAILED DOWNLOADS            ::",
        'Exception in thread "main" java.lang.RuntimeException: '
        "[download failed: org.apache.commons#commons-pool2;2.12.0!commons-pool2.jar]",
    ]
    (found,) = _not_started(lines).diagnostics
    assert found.code == "MZ062"
    assert "org.apache.commons:commons-pool2:2.12.0" in found.detail
    assert "~/.m2" in found.hint


def test_jars_that_can_not_be_had() -> None:
    lines = ["[unresolved dependency: io.delta#delta-spark_2.13;4.0.0: not found]"]
    (found,) = _not_started(lines).diagnostics
    assert "io.delta:delta-spark_2.13:4.0.0" in found.detail
    assert "proxy" in found.hint


def test_anything_else_that_keeps_spark_from_starting() -> None:
    (found,) = _not_started(["WARN x", "Error: Could not find or load main class"]).diagnostics
    assert found.code == "MZ062"
    assert found.detail == "Error: Could not find or load main class"


def test_what_is_given_from_outside_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.memory  3g\nspark.jars.packages a:b:1\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://there:7077 --conf spark.x=1 pyspark-shell")
    conf = dict(configuration_of("app", {"spark.y": "2"}, local_settings()).getAll())
    assert conf["spark.driver.memory"] == "3g"
    assert conf["spark.master"] == "spark://there:7077"
    assert "spark.driver.host" not in conf
    assert (conf["spark.x"], conf["spark.y"]) == ("1", "2")
    packages = conf["spark.jars.packages"].split(",")
    assert packages[0] == "a:b:1"
    assert any(package.startswith("io.delta:") for package in packages)


def test_spark_fetches_no_url_that_a_table_s_log_names() -> None:
    conf = dict(configuration_of("app", {}, {}).getAll())
    for scheme in ("http", "https", "ftp"):
        assert conf[f"spark.hadoop.fs.{scheme}.impl"] == f"mzplan.reads.no.{scheme}"


def test_no_table_has_spark_merge_its_files() -> None:
    conf = dict(configuration_of("a", {}, {"spark.databricks.delta.autoCompact.enabled": "true"}).getAll())
    assert conf["spark.databricks.delta.autoCompact.enabled"] == "false"


@pytest.mark.parametrize(
    ("name", "other", "ours"),
    [
        ("spark.sql.session.timeZone", "Europe/Berlin", "UTC"),
        ("spark.sql.ansi.enabled", "false", "true"),
        ("spark.sql.caseSensitive", "true", "false"),
    ],
)
def test_no_setting_changes_the_values_that_queries_compute(name: str, other: str, ours: str) -> None:
    """A runner and `verify` may have other settings, and a query's state outlives those of a runner."""
    assert configuration_of("a", {}, {}).get(name) == ours
    assert configuration_of("a", {}, {name: ours.upper()}).get(name) == ours
    for options, given in (({}, {name: other}), ({name: other}, {})):
        with pytest.raises(MzplanError) as refused:
            configuration_of("a", options, given)
        (diagnostic,) = refused.value.diagnostics
        assert diagnostic.code == "MZ062"
        assert diagnostic.summary == f"Spark's setting {name} is {other}, but mzplan needs {ours}"
        assert f"--conf {name}={ours}" in diagnostic.hint


def test_what_spark_shows_of_options_holds_no_key() -> None:
    for given in ({}, {"spark.redaction.regex": "(?i)secret|colour"}):
        shown = re.compile(configuration_of("a", given, {}).get("spark.redaction.regex") or "")
        for option in ("kafka.ssl.keystore.key", "kafka.sasl.jaas.config", "my.secret.word"):
            assert shown.search(option), option
        assert shown.search("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert not shown.search("kafka.bootstrap.servers") and not shown.search("keystore.type")
    assert shown.search("Colour")


def test_the_types_of_what_a_sink_writes() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    field = types.StructField("user-id", types.StringType(), False)
    wanted = {
        "STRUCT<`user-id`: STRING>": types.StructType([field]),
        "ARRAY<STRUCT<`user-id`: STRING>>": types.ArrayType(types.StructType([field])),
        "MAP<STRING,DECIMAL(10,2)>": types.MapType(types.StringType(), types.DecimalType(10, 2)),
        "TIMESTAMP_NTZ": types.TimestampNTZType(),
        "BIGINT": types.LongType(),
    }
    schema = types.StructType([types.StructField(name, type_) for name, type_ in wanted.items()])
    schema = schema.add("_position", "string").add("_change", "string")
    rows: Any = SimpleNamespace(columns=schema.names, schema=schema)
    assert [output.type for output in outputs_of(rows)] == list(wanted)


def test_the_upstream_is_kept_beside_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(str(tmp_path), "id", 2)
    assert checkpoint.upstream() is None
    assert not checkpoint.log.has_begun()
    checkpoint.record_upstream({"cluster_id": "c"})
    assert checkpoint.upstream() == {"cluster_id": "c"}
    assert Checkpoint.of(tmp_path.as_uri(), "id", 2).upstream() == {"cluster_id": "c"}
    assert [path.name for path in Path(checkpoint.folder).iterdir()] == ["upstream.json"]
    (Path(checkpoint.folder) / "upstream.json").write_text("{")
    with pytest.raises(OSError, match="damaged"):
        checkpoint.upstream()


def test_where_a_checkpoint_goes_on(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(str(tmp_path), "id", 1)
    assert checkpoint.position() is None
    for folder in ("offsets", "commits"):
        (Path(checkpoint.spark) / folder).mkdir(parents=True)
    for batch in (8, 9, 10):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"orders":{{"0":{batch}}}}}'
        (Path(checkpoint.spark) / "offsets" / str(batch)).write_text(text)
    for name in ("8", "9", ".9.crc"):
        (Path(checkpoint.spark) / "commits" / name).write_text("v1\n{}")
    assert checkpoint.log.has_begun()
    assert json.loads(checkpoint.position() or "") == {"orders": {"0": 9}}, "batch 10 is not done"


def test_a_collection_that_was_never_written(tmp_path: Path) -> None:
    collection = Path(collection_path(str(tmp_path), "id", 1))
    assert not is_untouched(str(collection))
    (collection / "_delta_log").mkdir(parents=True)
    for version in (0, 1):
        (collection / "_delta_log" / f"{version:020}.json").write_text("{}")
        assert is_untouched(str(collection)) is (version == 0)


@pytest.mark.parametrize(
    ("chain", "code", "text"),
    [
        (
            [
                (
                    "org.apache.spark.sql.streaming.StreamingQueryException",
                    "[STREAM_FAILED] …\n=== Streaming Query ===\nProject raise_error(mzplan[MZ066]: , w#1)",
                ),
                (
                    "org.apache.spark.SparkException",
                    "Job aborted: [USER_RAISED_EXCEPTION] mzplan[MZ066]: topic t, offset 2: it is not JSON "
                    "SQLSTATE: P0001\n\tat org.x",
                ),
            ],
            "MZ066",
            "topic t, offset 2: it is not JSON",
        ),
        (
            [
                ("org.apache.spark.sql.streaming.StreamingQueryException", "failed"),
                (
                    "org.apache.kafka.common.errors.TimeoutException",
                    "Timed out waiting for a node assignment.",
                ),
            ],
            "MZ050",
            "connection.k (a:1): the server can't be reached: Timed out waiting for a node assignment.",
        ),
        (
            [
                ("x", "failed"),
                ("java.lang.IllegalStateException", "[KAFKA_DATA_LOSS.X] offsets are gone\nmore"),
            ],
            "MZ067",
            "connection.k (a:1): records were deleted from the topic before they were read: "
            "[KAFKA_DATA_LOSS.X] offsets are gone",
        ),
        (
            [
                ("x", "failed"),
                (
                    "org.apache.spark.sql.delta.DeltaStreamingNonAdditiveSchemaIncompatibleException",
                    "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] no",
                ),
            ],
            "MZ230",
            "connection.k (a:1): a column of the table was renamed, dropped or retyped, and Delta doesn't "
            "stream across that: [DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] no",
        ),
        ([("a.B", ""), ("c.D", "the cause\n\tat e.F(G.java:1)")], "MZ064", "the cause"),
        (
            [
                (
                    "py4j.Py4JException",
                    "An exception was raised by the Python Proxy. "
                    "Return Message: Traceback (most recent call last):\n"
                    '  File "x.py", line 1, in <module>\n    f()\nValueError: no such thing\n',
                )
            ],
            "MZ064",
            "ValueError: no such thing",
        ),
        (
            [
                ("SparkException", "Python worker failed to connect back."),
                ("SocketTimeout", "Accept timed out"),
            ],
            "MZ064",
            "Spark's Python process did not start within 10 s: is the machine overloaded? mzplan retries",
        ),
    ],
)
def test_failures_for_people(chain: list[tuple[str, str]], code: str, text: str) -> None:
    found = failures.of_messages(chain, "connection.k (a:1)")
    said, _, fix = found.text.partition(". Fix: ")
    assert (found.code, said) == (code, text.rstrip("."))
    assert bool(fix) == (code != "MZ064")  # of what is not known there is none


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (
            [
                "Job aborted.",
                "[CAST_INVALID_INPUT] "
                "The value 'geheim' of the type \"STRING\" cannot be cast to \"INT\" because "
                "it is malformed. SQLSTATE: 22018\n"
                "== SQL (line 1, position 1) ==\nCAST(c AS INT) AS a\n^^^^\n",
            ],
            "CAST(c AS INT) AS a: a value of type STRING is not INT",
        ),
        (
            ['[CAST_OVERFLOW] The value geheim of the type "BIGINT" cannot be cast to "INT" overflow.'],
            "a value of type BIGINT is not INT",
        ),
        (
            ["[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION]  geheim cannot be represented as Decimal(4, 2)."],
            "a number does not fit DECIMAL(4,2)",
        ),
        (
            [
                "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'n' and 'n'",
                "[DELTA_MERGE] Failed to merge incompatible data types IntegerType and LongType",
            ],
            "column n of the table is Integer, and can't hold a value of type Long",
        ),
        (
            [
                "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'm' and 'm'",
                "[X] Failed to merge decimal types with incompatible precision 5 and 10 & scale 2 and 3",
            ],
            "column m of the table is DECIMAL(5,2), and can't hold a value of type DECIMAL(10,3)",
        ),
        (
            [
                '[DELTA_EXCEED] Value "geheim" exceeds char/varchar type length limitation.'
                " Failed check: ((c IS NULL) OR (length(c) <= 3))."
            ],
            "column c holds at most 3 characters, and a value of type STRING has more",
        ),
        (
            ["[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: z.\n"],
            "column z is NOT NULL, but a row has no value",
        ),
        (
            ['[CAST_OVERFLOW_IN] Fail to assign a value of "BIGINT" type to the "INT" type column '
             "or variable `n` due to an overflow. SQLSTATE: 22003"],
            "column n is INT, and can't hold a value of type BIGINT",
        ),
        (["[INVALID_ARRAY_INDEX] The index 77 is out of bounds. SQLSTATE: 22003"],
         "a value does not fit (INVALID_ARRAY_INDEX)"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named_by_column_and_type_and_not_shown(
    messages: list[str], text: str
) -> None:
    found = failures.of_messages([("org.apache.spark.X", one) for one in messages])
    said, _, fix = found.text.partition(". Fix: ")
    assert (found.code, said) == ("MZ064", text) and "select" in fix
    assert "geheim" not in found.text and "77" not in found.text


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to …", "nullif(divisor, 0)"),
        ("[REMAINDER_BY_ZERO] Remainder by zero. Use `try_mod` to …", "nullif(divisor, 0)"),
        ("[ARITHMETIC_OVERFLOW] long overflow. Use 'try_add' to … SQLSTATE: 22003", "wider type"),
    ],
)
def test_the_fix_of_arithmetic_is_not_try_cast_which_still_fails(message: str, fix: str) -> None:
    found = failures.of_messages([("org.apache.spark.X", message)])
    assert fix in found.text and "try_cast" not in found.text


def test_what_says_its_fix_keeps_it() -> None:
    long = "mzplan[MZ082]: " + "x" * 700 + ". Fix: do it."
    assert failures.of_messages([("X", long)]).text.endswith("x. Fix: do it.")


def test_our_own_errors_keep_their_code() -> None:
    found = failures.of_exception(error("MZ059", "Refused", "Too long.", "make it shorter."))
    assert (found.code, found.text) == ("MZ059", "Refused. Too long. Fix: make it shorter.")


def progress(**other: Any) -> dict[str, Any]:
    return {"batchId": 4, "durationMs": {"addBatch": 5}, "sources": [], **other}


def _java(message: str) -> Any:
    """An exception of Java's, without a cause."""
    class_ = SimpleNamespace(getName=lambda: "org.example.Problem")
    return SimpleNamespace(getClass=lambda: class_, getMessage=lambda: message, getCause=lambda: None)


class _PySparkError(Exception):
    def __init__(self, java_exception: Any):
        super().__init__("what PySpark makes of it")
        self.java_exception = java_exception


def test_what_pyspark_fails_to_translate_is_told_as_it_was_thrown() -> None:
    try:
        try:
            raise _PySparkError(_java("[DELTA_X] Cannot resolve t.id"))
        except _PySparkError:
            raise _PySparkError(_java("Cannot find main error class")) from None
    except _PySparkError as problem:
        found = failures.of_exception(problem)
    assert (found.code, found.text) == ("MZ064", "[DELTA_X] Cannot resolve t.id")


def test_progress_of_a_batch_and_of_none() -> None:
    done = parse_progress(progress(inputRowsPerSecond=2.5, processedRowsPerSecond=None))
    assert (done.step, done.input_rows_per_second, done.processed_rows_per_second) == (4, 2.5, 0.0)
    assert parse_progress(progress(durationMs={"latestOffset": 1})).step == 3


def test_left_out_records_are_counted_and_shown() -> None:
    listener = ProgressListener()

    def event(**more: Any) -> Any:
        text = json.dumps({**progress(**more), "runId": "r"})
        return SimpleNamespace(progress=lambda: SimpleNamespace(json=lambda: text))

    skipped = {"observedMetrics": {"mzplan_left_out": {"records": 1200}}}
    # Without data the last one's metrics may be there once more.
    for more in (skipped, {}, skipped, {**skipped, "durationMs": {"latestOffset": 1}}):
        listener.onQueryProgress(event(**more))
    found = listener.get("r")
    assert found is not None and found.left_out == 2400
    source = ResourceState(
        address=Address("source", "s"), id="i", type="kafka", body={"on_error": "dead-letter"}
    )
    seen = Observation(
        address=source.address,
        generation=1,
        digest="1:a",
        wanted_digest="1:a",
        wanted_generation=1,
        condition="running",
        left_out=found.left_out,
    )
    status = ProjectStatus(serial=1, instances=(), queries=(QueryStatus(resource=source, observation=seen),))
    assert "\n\nsource.s: 2,400 malformed records set aside since it was started\n" in render_status(status)
    assert status_to_json(status)["queries"][0]["left_out"] == 2400


def test_lag_of_kafka_and_of_a_table() -> None:
    kafka = {
        "description": "KafkaV2[Subscribe[t]]",
        "latestOffset": {"t": {"0": 10, "1": 5}},
        "endOffset": {"t": {"0": 7, "1": 5}},
    }
    assert parse_progress(progress(sources=[kafka])).lag == 3
    delta = {"description": "DeltaSource[file:/x]", "metrics": {"numFilesOutstanding": "0"}}
    assert parse_progress(progress(sources=[delta])).lag == 0
    delta["metrics"] = {"numFilesOutstanding": "2"}
    assert parse_progress(progress(sources=[delta])).lag is None


@pytest.mark.parametrize("part", ["KEY", "VALUE"])
def test_a_state_that_does_not_fit_is_replaced(part: str) -> None:
    message = (
        f"[STATE_STORE_{part}_SCHEMA_NOT_COMPATIBLE] Provided {part.lower()} schema does not match existing "
        "state schema.\nPlease check number and type of fields. SQLSTATE: 42K06"
    )
    found = failures.of_messages([("StateStoreException", message)], "", Address("view", "totals"))
    assert found.code == "MZ064"
    assert found.text.endswith(
        "Fix: start a new generation, with an empty state: mzplan apply --replace "
        "view.totals --allow-replace."
    )
    other = failures.of_messages([("SparkException", f"mzplan{failures.MARK}[MZ064]: odd")])
    assert "--replace" not in other.text


def test_the_fix_names_the_query() -> None:
    chain = [("KafkaException", "[KAFKA_DATA_LOSS.X] Some data may have been lost")]
    found = failures.of_messages(chain, "", Address("source", "orders"))
    assert "--replace source.orders --allow-replace" in found.text


def test_a_file_that_is_gone_is_no_file_to_correct() -> None:
    """As VACUUM of a Delta table leaves it to a source that has not read it yet."""
    gone = "[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading file file:/lake/a.parquet. It is"
    found = failures.of_messages(
        [("SparkException", "[TASK_WRITE_FAILED] Task failed"), ("SparkException", gone)]
    )
    assert found.code == "MZ067" and "file file:/lake/a.parquet was deleted before it was read" in found.text
    assert "VACUUM" in found.text
