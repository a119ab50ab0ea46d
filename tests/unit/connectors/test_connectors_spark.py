"""mzplan.spark without Spark: Java, a Spark that does not start, checkpoints, failures, progress."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from mzplan.controller.executor import ExecutorContext, QueryName
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.spark import failures
from mzplan.spark.executor import SparkExecutor
from mzplan.spark.process.java import require_java
from mzplan.spark.process.session import _not_started
from mzplan.spark.process.settings import configuration_of, local_settings
from mzplan.spark.progress import parse_progress
from mzplan.spark.query import RunningQuery
from tests.support import refusal


def test_an_end_that_spark_does_not_announce_is_found(tmp_path: Path) -> None:
    """Also while all other queries are in their first batches."""
    executor = SparkExecutor(ExecutorContext(project="shop", directory=str(tmp_path), warehouse="./w"))
    active = dict.fromkeys((f"q{n}" for n in range(9)), True)
    for run_id in active:
        java = MagicMock(isActive=partial(active.__getitem__, run_id), lastProgress=lambda: None)
        java.status().message.return_value = "Processing new data"
        name = QueryName(project="shop", address=Address("sink", run_id), generation=1, digest="1:a")
        executor._running[name] = RunningQuery(name, "somewhere", java=java, run_id=run_id)
        executor._progress.follow(run_id)
    assert all(report.active for report in executor.reports())
    active["q7"] = False
    found = [report.run_id for _ in active for report in executor.reports() if not report.active]
    assert set(found) == {"q7"}


@pytest.mark.parametrize(
    ("printed", "home", "detail"),
    [
        ('java version "1.8.0_392"', "", "is Java 8"),
        ("oops", "", "does not say which version it is"),
        ("", "", "on the PATH"),
        ("", "/nowhere", "JAVA_HOME (/nowhere)"),
    ],
)
def test_a_missing_or_unsuitable_java_is_an_error(
    printed: str, home: str, detail: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "java"

    def says(version: str) -> None:
        program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        program.chmod(0o755)

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    says('openjdk version "17.0.15" 2025-04-15')
    assert require_java() == str(program)
    program.unlink()
    if printed:
        says(printed)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    found = refusal(require_java)
    assert found.code == "MZ061" and detail in found.detail and "JDK 17 or 21" in found.hint


@pytest.mark.parametrize(
    ("line", "detail", "hint"),
    [
        ("[download failed: org.a#b;2.12.0!b.jar]", "org.a:b:2.12.0", "~/.m2"),
        ("[unresolved dependency: io.delta#d_2.13;4.0.0: not found]", "io.delta:d_2.13:4.0.0", "proxy"),
        ("Error: Could not find or load main class", "Could not find or load main", "Java"),
    ],
)
def test_a_failed_start_of_spark_is_explained(line: str, detail: str, hint: str) -> None:
    (found,) = _not_started(["\tfound org.a#b;2.12.0 in local-m2-cache", "WARN x", line]).diagnostics
    assert found.code == "MZ062" and detail in found.detail and "WARN" not in found.detail
    assert hint in found.hint


def test_what_is_given_from_outside_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("#\nspark.driver.memory  3g\nspark.jars.packages a:b:1")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://there:7077 --conf spark.x=1 pyspark-shell")
    conf = dict(configuration_of("app", {"spark.y": "2"}, local_settings()).getAll())
    assert (conf["spark.driver.memory"], conf["spark.master"]) == ("3g", "spark://there:7077")
    assert (conf["spark.x"], conf["spark.y"]) == ("1", "2") and "spark.driver.host" not in conf
    heartbeats = "spark.storage.blockManagerHeartbeatTimeoutMs"  # a local executor must never be removed
    assert heartbeats not in conf and configuration_of("a", {}, {heartbeats: "9"}).get(heartbeats) == "365d"
    packages = conf["spark.jars.packages"]
    assert packages.startswith("a:b:1,") and ",io.delta:" in packages


def test_spark_fetches_no_url_and_merges_no_files() -> None:
    """A table's log may name any URL."""
    conf = dict(configuration_of("a", {}, {"spark.databricks.delta.autoCompact.enabled": "true"}).getAll())
    for scheme in ("http", "https", "ftp"):
        assert conf[f"spark.hadoop.fs.{scheme}.impl"] == f"mzplan.reads.no.{scheme}"
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
        found = refusal(partial(configuration_of, "a", options, given))
        assert found.code == "MZ062" and f"--conf {name}={ours}" in found.hint
        assert found.summary == f"Spark's setting {name} is {other}, but mzplan needs {ours}"


def test_what_spark_shows_of_options_holds_no_key() -> None:
    for given in ({}, {"spark.redaction.regex": "(?i)secret|colour"}):
        shown = re.compile(configuration_of("a", given, {}).get("spark.redaction.regex") or "")
        for option in ("kafka.ssl.keystore.key", "kafka.sasl.jaas.config", "my.secret.word"):
            assert shown.search(option), option
        assert shown.search("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        assert not shown.search("kafka.bootstrap.servers") and not shown.search("keystore.type")
    assert shown.search("Colour")


ORDERS = Address("source", "orders")
REPLACE = "--replace source.orders --allow-replace"
DELTA_CHANGE = "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] no"
NO_WORKER = "Spark's Python process did not start within 10 s: is the machine overloaded? mzplan retries"
OTHER_SOURCES = (
    "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query. "
    "Cannot continue."
)
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
    "our own with a fix": (["mzplan[MZ082]: " + "x" * 700 + ". Fix: do it."], "MZ082", "x" * 700, "do it."),
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
    "other readings": (
        ["failed", f"java.lang.AssertionError| assertion failed: {OTHER_SOURCES}"],
        "MZ320",
        "connection.k (a:1): the query reads its collections another number of times than its checkpoint has "
        f"positions: assertion failed: {OTHER_SOURCES.rstrip('.')}",
        REPLACE,
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
    "no worker": (["Python worker failed to connect back.", "Accept timed out"], "MZ064", NO_WORKER, ""),
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
        ("[ARITHMETIC_OVERFLOW] long overflow. Use 'try_add' to … SQLSTATE: 22003", "wider type"),
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided schema does not match", REPLACE),
    ],
)
def test_the_fix_of_a_failure_helps(message: str, fix: str) -> None:
    found = failures.of_messages([("org.apache.spark.X", message)], "", ORDERS)
    assert found.code == "MZ064" and fix in found.text and "try_cast" not in found.text


_TOO_LARGE = "org.apache.kafka.common.errors.RecordTooLargeException"


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        (
            "The message is 1500088 bytes when serialized which is larger than 1048576, which is the value "
            "of the max.request.size configuration.",
            "max.request.size in the options of the connection",
        ),
        (
            "The request included a message larger than the max message size the server will accept.",
            "max.message.bytes of the topic",
        ),
    ],
    ids=["client", "topic"],
)
def test_a_record_that_is_too_large_names_the_limit_that_refused_it(message: str, limit: str) -> None:
    found = failures.of_messages([("org.apache.spark.SparkException", "Job aborted."), (_TOO_LARGE, message)])
    assert found.code == "MZ059" and f"Fix: raise {limit}, or select fewer columns" in found.text


def test_our_own_errors_keep_their_code() -> None:
    found = failures.of_exception(error("MZ059", "Refused", "Too long.", "make it shorter."))
    assert (found.code, found.text) == ("MZ059", "Refused. Too long. Fix: make it shorter.")


def progress(**other: Any) -> dict[str, Any]:
    return {"batchId": 4, "durationMs": {"addBatch": 5}, "sources": [], **other}


def test_progress_of_a_batch_and_of_none_and_its_lag() -> None:
    done = parse_progress(progress(inputRowsPerSecond=2.5, processedRowsPerSecond=None))
    assert (done.step, done.input_rows_per_second, done.processed_rows_per_second) == (4, 2.5, 0.0)
    assert parse_progress(progress(durationMs={"latestOffset": 1})).step == 3
    offsets = {"latestOffset": {"t": {"0": 10, "1": 5}}, "endOffset": {"t": {"0": 7, "1": 5}}}
    kafka = {"description": "KafkaV2[Subscribe[t]]", **offsets}
    assert parse_progress(progress(sources=[kafka])).lag == 3
    delta = {"description": "DeltaSource[file:/x]", "metrics": {"numFilesOutstanding": "0"}}
    assert parse_progress(progress(sources=[delta])).lag == 0
    delta["metrics"] = {"numFilesOutstanding": "2"}
    assert parse_progress(progress(sources=[delta])).lag is None
    table = {"description": "RatePerMicroBatchStream[rowsPerBatch=1, …]"}
    assert parse_progress(progress(sources=[table])).lag == 0
