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
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.render.status import render_status, status_to_json
from mzplan.spark import failures
from mzplan.spark.executor import SparkExecutor
from mzplan.spark.java import require_java
from mzplan.spark.progress import Progress, ProgressListener, parse_progress
from mzplan.spark.projection import outputs_of
from mzplan.spark.query import RunningQuery
from mzplan.spark.session import _not_started
from mzplan.spark.settings import configuration_of, local_settings
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.storage import is_untouched
from tests.unit.small_projects import commit, kafka, observe, project, source


def running(messages: list[str], run_id: str = "r", last: object = None, step: int = -1) -> RunningQuery:
    """Return a query to which Spark gives these status messages in turn. It has ended when none is left."""
    status = SimpleNamespace(message=lambda: messages.pop(0))
    java = SimpleNamespace(
        isActive=lambda: bool(messages),
        status=lambda: status,
        lastProgress=lambda: last,
        exception=lambda: SimpleNamespace(isEmpty=lambda: True),
    )
    name = QueryName(project="shop", address=Address("sink", run_id), generation=1, digest="1:a")
    return RunningQuery(name, "somewhere", java=java, run_id=run_id, step=step)


def test_a_run_without_a_batch_reports_the_step_of_the_run_before() -> None:
    query = running(["Initializing sources"], step=7)
    assert [query.report(Progress(step=step)).step for step in (-1, 8)] == [7, 8]


@pytest.mark.parametrize(
    ("messages", "duration", "triggered"),
    [
        # Spark reports a trigger without data only after ten seconds; status would go back to `starting`.
        (["Initializing sources", "Waiting for data to arrive", "Processing"], "", [False, True, True]),
        (["Waiting for next trigger"] * 2, "latestOffset", [True]),
        # Spark is about to report rows: the run must not seem to have read nothing.
        (["Waiting for next trigger"] * 2, "addBatch", [False]),
    ],
)
def test_a_run_that_waits_for_data_has_triggered(
    messages: list[str], duration: str, triggered: list[bool]
) -> None:
    durations = SimpleNamespace(containsKey=duration.__eq__)
    query = running(messages, last=SimpleNamespace(durationMs=lambda: durations) if duration else None)
    found = []
    for _ in triggered:
        assert not query.look(None)
        found.append(query.report(None).triggered)
    assert found == triggered and query.report(Progress(step=1)).triggered


def test_a_look_asks_a_few_queries_in_turn_and_finds_each_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.spark.executor._POLL_SECONDS", 0.0)
    executor = SparkExecutor(ExecutorContext(project="shop", directory=str(tmp_path), warehouse="./w"))
    messages = {f"q{n}": ["Processing new data"] * 100 for n in range(40)}
    queries = {run_id: running(given, run_id) for run_id, given in messages.items()}
    for query in queries.values():
        executor._running[query.name] = query
        executor._progress.follow(query.run_id)

    def ended(looks: int = 1) -> set[str]:
        return {report.run_id for _ in range(looks) for report in executor.reports() if not report.active}

    assert ended(looks=11) == set()
    assert sorted(map(len, messages.values())) == [98] * 4 + [99] * 36  # four at each look
    messages["q30"].clear()
    run_id = SimpleNamespace(toString=lambda: "q30")
    executor._progress.onQueryTerminated(SimpleNamespace(runId=lambda: run_id))
    assert ended() == {"q30"}
    # Spark doesn't announce this end. The other queries are in long first batches.
    queries["q38"].was_idle = queries["q39"].was_idle = True
    messages["q39"].clear()
    assert ended(looks=3) == {"q30", "q39"}


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


@pytest.mark.parametrize("version", ["17.0.15", "21", "24.0.1"])
def test_java_on_the_path_is_used(java: Any, version: str) -> None:
    program = java(f'openjdk version "{version}" 2025-04-15')
    assert require_java() == str(program)


@pytest.mark.parametrize(
    ("printed", "home", "detail"),
    [
        ('java version "1.8.0_392"', "", "is Java 8"),
        ('openjdk version "11.0.2"', "", "is Java 11"),
        ("oops", "", "does not say which version it is"),
        ("", "", "on the PATH"),
        ("", "/nowhere", "JAVA_HOME (/nowhere)"),
    ],
)
def test_a_missing_or_unsuitable_java_is_an_error(
    java: Any, printed: str, home: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if printed:
        java(printed)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(MzplanError) as caught:
        require_java()
    (found,) = caught.value.diagnostics
    assert found.code == "MZ061" and detail in found.detail and "JDK 17 or 21" in found.hint


@pytest.mark.parametrize(
    ("lines", "detail", "hint"),
    [
        (
            [
                "\tfound org.apache.commons#commons-pool2;2.12.0 in local-m2-cache",
                "[download failed: org.apache.commons#commons-pool2;2.12.0!commons-pool2.jar]",
            ],
            "org.apache.commons:commons-pool2:2.12.0",
            "~/.m2",
        ),
        (
            ["[unresolved dependency: io.delta#delta-spark_2.13;4.0.0: not found]"],
            "io.delta:delta-spark_2.13:4.0.0",
            "proxy",
        ),
        (["WARN x", "Error: Could not find or load main class"], "Could not find or load main", "Java"),
    ],
    ids=["broken Maven cache", "no network", "anything else"],
)
def test_a_failed_start_of_spark_is_explained(lines: list[str], detail: str, hint: str) -> None:
    (found,) = _not_started(lines).diagnostics
    assert found.code == "MZ062" and detail in found.detail and "WARN" not in found.detail
    assert hint in found.hint


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


def test_the_upstream_is_recorded_beside_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(str(tmp_path), "id", 2)
    assert checkpoint.upstream() is None and not checkpoint.log.has_begun()
    checkpoint.record_upstream({"cluster_id": "c"})
    assert Checkpoint.of(tmp_path.as_uri(), "id", 2).upstream() == {"cluster_id": "c"}
    (file,) = Path(checkpoint.folder).iterdir()
    file.write_text("{")
    with pytest.raises(OSError, match="damaged"):
        checkpoint.upstream()


def test_a_checkpoint_resumes_after_the_last_committed_batch(tmp_path: Path) -> None:
    checkpoint = Checkpoint.of(str(tmp_path), "id", 1)
    assert checkpoint.position() is None
    for folder, batches in (("offsets", ("8", "9", "10")), ("commits", ("8", "9", ".9.crc"))):
        (Path(checkpoint.spark) / folder).mkdir(parents=True)
        for batch in batches:
            (Path(checkpoint.spark) / folder / batch).write_text(f'v1\n{{}}\n{{"orders":{{"0":{batch}}}}}')
    assert checkpoint.log.has_begun()
    assert json.loads(checkpoint.position() or "") == {"orders": {"0": 9}}


def test_a_collection_without_a_step_is_untouched(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    assert not is_untouched(str(tmp_path))
    log.mkdir()
    for version in (0, 1):
        (log / f"{version:020}.json").write_text("{}")
        assert is_untouched(str(tmp_path)) is (version == 0)


ORDERS = Address("source", "orders")
REPLACE = "--replace source.orders --allow-replace"
DELTA_CHANGE = "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] no"
NO_WORKER = "Spark's Python process did not start within 10 s: is the machine overloaded? mzplan retries"
# The exceptions from the outermost to the innermost, as `[class|] message`; the failure's code, its text, and
# a part of its fix.
FAILURES: dict[str, tuple[list[str], str, str, str]] = {
    "our own": (
        [
            "[STREAM_FAILED] …\n=== Streaming Query ===\nProject raise_error(mzplan[MZ066]: , w#1)",
            "Job aborted: [X] mzplan[MZ066]: topic t, offset 2: it is not JSON SQLSTATE: P0001\n\tat org.x",
        ],
        "MZ066",
        "topic t, offset 2: it is not JSON",
        "on_error: skip",
    ),
    "our own with a long fix": (
        ["mzplan[MZ082]: " + "x" * 700 + ". Fix: do it."],
        "MZ082",
        "x" * 700,
        "do it.",
    ),
    "no answer": (
        ["failed", "org.apache.kafka.common.errors.TimeoutException| Timed out waiting for a node."],
        "MZ050",
        "connection.k (a:1): the server can't be reached: Timed out waiting for a node",
        "check the server",
    ),
    "lost records": (
        ["failed", "[KAFKA_DATA_LOSS.X] offsets are gone\nmore"],
        "MZ067",
        "connection.k (a:1): records were deleted from the topic before they were read: "
        "[KAFKA_DATA_LOSS.X] offsets are gone",
        REPLACE,
    ),
    "changed table": (
        ["failed", f"DeltaStreamingNonAdditiveSchemaIncompatibleException| {DELTA_CHANGE}"],
        "MZ230",
        "connection.k (a:1): a column of the table was renamed, dropped or retyped, and Delta doesn't stream "
        f"across that: {DELTA_CHANGE}",
        REPLACE,
    ),
    "deleted file": (
        ["failed", "[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading file file:/lake/a.parquet. It"],
        "MZ067",
        "file file:/lake/a.parquet was deleted before it was read",
        "VACUUM",
    ),
    "innermost cause": (["", "the cause\n\tat e.F(G.java:1)"], "MZ064", "the cause", ""),
    "Python": (
        [
            "py4j.Py4JException: An exception was raised by the Python Proxy. "
            "Return Message: Traceback (most recent call last):\n"
            '  File "x.py", line 1, in <module>\n    f()\nValueError: no such thing\n'
        ],
        "MZ064",
        "ValueError: no such thing",
        "",
    ),
    "no worker": (
        ["Python worker failed to connect back.", "Accept timed out"],
        "MZ064",
        NO_WORKER,
        "",
    ),
}


@pytest.mark.parametrize(("messages", "code", "text", "fix"), FAILURES.values(), ids=FAILURES)
def test_a_failure_has_its_cause_and_its_fix(messages: list[str], code: str, text: str, fix: str) -> None:
    exceptions = [message.rpartition("| ") for message in messages]
    chain = [(class_ or "org.apache.spark.X", message) for class_, _, message in exceptions]
    found = failures.of_messages(chain, "connection.k (a:1)", ORDERS)
    cause, _, hint = found.text.partition(". Fix: ")
    assert (found.code, cause) == (code, text)
    assert fix in hint and bool(hint) == bool(fix)


VALUES = {
    "CAST(c AS INT) AS a: a value of type STRING is not INT": (
        '[CAST_INVALID_INPUT] The value \'geheim\' of the type "STRING" cannot be cast to "INT" because it '
        "is malformed. SQLSTATE: 22018\n== SQL (line 1, position 1) ==\nCAST(c AS INT) AS a\n^^^^\n"
    ),
    "a value of type BIGINT is not INT": (
        '[CAST_OVERFLOW] The value geheim of the type "BIGINT" cannot be cast to "INT" overflow.'
    ),
    "a number does not fit DECIMAL(4,2)": (
        "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION]  geheim cannot be represented as Decimal(4, 2)."
    ),
    "column n of the table is Integer, and can't hold a value of type Long": (
        "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'n' and 'n'\n"
        "[DELTA_MERGE] Failed to merge incompatible data types IntegerType and LongType"
    ),
    "column m of the table is DECIMAL(5,2), and can't hold a value of type DECIMAL(10,3)": (
        "[DELTA_FAILED_TO_MERGE_FIELDS] Failed to merge fields 'm' and 'm'\n"
        "[X] Failed to merge decimal types with incompatible precision 5 and 10 & scale 2 and 3"
    ),
    "column c holds at most 3 characters, and a value of type STRING has more": (
        '[DELTA_EXCEED] Value "geheim" exceeds char/varchar type length limitation. '
        "Failed check: ((c IS NULL) OR (length(c) <= 3))."
    ),
    "column z is NOT NULL, but a row has no value": (
        "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: z.\n"
    ),
    "column n is INT, and can't hold a value of type BIGINT": (
        '[CAST_OVERFLOW_IN] Fail to assign a value of "BIGINT" type to the "INT" type column '
        "or variable `n` due to an overflow. SQLSTATE: 22003"
    ),
    "a value does not fit (INVALID_ARRAY_INDEX)": (
        "[INVALID_ARRAY_INDEX] The index 77 is out of bounds. SQLSTATE: 22003"
    ),
}


@pytest.mark.parametrize(("text", "message"), VALUES.items())
def test_an_unfit_value_is_named_by_column_and_type_and_not_shown(text: str, message: str) -> None:
    found = failures.of_messages([("org.apache.spark.X", one) for one in ("Job aborted.", message)])
    cause, _, fix = found.text.partition(". Fix: ")
    assert (found.code, cause) == ("MZ064", text)
    assert ("cast the value in select" if text.startswith("column") else "in select use try_cast") in fix
    assert "geheim" not in found.text and "77" not in found.text


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to …", "nullif(divisor, 0)"),
        ("[REMAINDER_BY_ZERO] Remainder by zero. Use `try_mod` to …", "nullif(divisor, 0)"),
        ("[ARITHMETIC_OVERFLOW] long overflow. Use 'try_add' to … SQLSTATE: 22003", "wider type"),
        *(
            (f"[STATE_STORE_{part}_SCHEMA_NOT_COMPATIBLE] Provided schema does not match", REPLACE)
            for part in ("KEY", "VALUE")
        ),
    ],
)
def test_the_fix_of_a_failure_helps(message: str, fix: str) -> None:
    found = failures.of_messages([("org.apache.spark.X", message)], "", ORDERS)
    assert found.code == "MZ064" and fix in found.text and "try_cast" not in found.text


def test_our_own_errors_keep_their_code() -> None:
    found = failures.of_exception(error("MZ059", "Refused", "Too long.", "make it shorter."))
    assert (found.code, found.text) == ("MZ059", "Refused. Too long. Fix: make it shorter.")


def progress(**other: Any) -> dict[str, Any]:
    return {"batchId": 4, "durationMs": {"addBatch": 5}, "sources": [], **other}


class PySparkError(Exception):
    """An error for an exception of Java's without a cause."""

    def __init__(self, message: str):
        super().__init__("what PySpark makes of it")
        class_ = SimpleNamespace(getName=lambda: "org.example.Problem")
        self.java_exception = SimpleNamespace(
            getClass=lambda: class_, getMessage=lambda: message, getCause=lambda: None
        )


def test_an_exception_that_pyspark_fails_to_translate_keeps_its_text() -> None:
    try:
        try:
            raise PySparkError("[DELTA_X] Cannot resolve t.id")
        except PySparkError:
            raise PySparkError("Cannot find main error class") from None
    except PySparkError as problem:
        found = failures.of_exception(problem)
    assert (found.code, found.text) == ("MZ064", "[DELTA_X] Cannot resolve t.id")


def test_progress_of_a_batch_and_of_none() -> None:
    done = parse_progress(progress(inputRowsPerSecond=2.5, processedRowsPerSecond=None))
    assert (done.step, done.input_rows_per_second, done.processed_rows_per_second) == (4, 2.5, 0.0)
    assert parse_progress(progress(durationMs={"latestOffset": 1})).step == 3


def test_skipped_records_are_counted_and_shown() -> None:
    listener = ProgressListener()

    def event(**more: Any) -> Any:
        text = json.dumps({**progress(**more), "runId": "r"})
        return SimpleNamespace(progress=lambda: SimpleNamespace(json=lambda: text))

    skipped = {"observedMetrics": {"mzplan_left_out": {"records": 1200}}}
    # A trigger without data may repeat the metrics of the one before.
    for more in (skipped, {}, skipped, {**skipped, "durationMs": {"latestOffset": 1}}):
        listener.onQueryProgress(event(**more))
    found = listener.get("r")
    assert found is not None and found.left_out == 2400
    state = commit(project(kafka(), source(on_error="dead-letter")))
    seen = observe(state, orders={"left_out": found.left_out})["local"].observations[ORDERS]
    queries = (QueryStatus(resource=state.resources[ORDERS], observation=seen),)
    status = ProjectStatus(serial=1, instances=(), queries=queries)
    assert "source.orders: 2,400 malformed records set aside since it was started\n" in render_status(status)
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
