"""A replace that would lose rows is refused before anything is touched, wherever that is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from examples.servers import produce_json
from tests.integration.spark_lab import read_delta
from tests.support import Project, drop_file, eventually, kafka_connection, orders

if TYPE_CHECKING:
    from examples.servers import KafkaBroker

LOST = "200 of 300 records of source.lo_s can't be read again"


def delete_records(broker: KafkaBroker, topic: str, before: int) -> None:
    """As retention would."""
    partition = TopicPartition(topic, 0, before)
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_records([partition])[partition].result(20)


def ids(table: Path) -> list[int]:
    return sorted(int(row["id"]) for row in read_delta(table))


def test_records_that_retention_has_dropped(
    project: Project, kafka: KafkaBroker, topic: Callable[..., str]
) -> None:
    name, lake = topic("loss", partitions=1), project.folder / "loss" / "lake"
    produce_json(kafka.bootstrap, name, orders(0, 300))

    def declare(type_: str) -> None:
        schema = f"id {type_}, customer STRING, amount DECIMAL(10,2)"
        text = "connections:\n" + kafka_connection("lo_k", kafka.bootstrap)
        text += "  lo_f: {type: files, path: loss}\n"
        text += f"sources:\n  lo_s: {{connection: lo_k, topic: {name}, trigger: {{interval: 500ms}},\n"
        text += f'    format: {{type: json, schema: "{schema}"}}}}\n'
        text += "sinks:\n  lo_t: {type: delta, from: lo_s, connection: lo_f, path: lake, "
        text += "trigger: {interval: 500ms}, on_replace: truncate}\n"
        project.write("loss", text)

    declare("BIGINT")
    project.apply()
    eventually("300 rows", lambda: ids(lake) == list(range(300)))
    delete_records(kafka, name, 200)
    declare("INT")
    before, runs = project.state_bytes(), project.run_ids("lo_")

    # In a plan with --live: above all else, in each of its forms.
    comment, saved = project.folder / "loss.md", str(project.folder / "loss.plan")
    seen = project.run("plan", "--live", "--markdown", str(comment), "--out", saved)
    assert seen.returncode == 0
    assert seen.stdout.startswith(f"! {LOST}: connection.lo_k"), seen.stdout
    assert "partition 0: 0–199" in seen.stdout.splitlines()[0]
    above = comment.read_text().partition("<details>")[0]
    assert f"**{LOST}** (apply needs `--allow-loss`)" in above and "partition 0: 0–199" in above

    # Refused where a replacement is allowed, before anything is committed.
    for given in ((), (saved, "--no-live")):  # a saved plan remembers what was seen
        (refused,) = project.apply("--allow-replace", *given, code=7)["diagnostics"]
        assert (refused["code"], refused["summary"]) == ("MZ292", LOST)
    assert project.state_bytes() == before and project.run_ids("lo_") == runs
    assert ids(lake) == list(range(300))
    done = project.apply(saved, "--allow-replace", "--allow-loss")
    newest, *_ = project.json("history", "-n", "1")["history"]
    assert newest["commit"]["losses"]["source.lo_s"].startswith(f"{LOST}: connection.lo_k")
    assert f"Lost:    {LOST}: " in project.run("history", "show", str(newest["serial"])).stdout
    assert {one["status"] for one in done["changes"]} <= {"applied", None}
    eventually("what is left", lambda: ids(lake) == list(range(200, 300)))
    assert project.json("plan")["changes"] == []


@pytest.mark.nightly
def test_files_that_are_gone_are_found_by_the_runner_before_it_stops_anything(project: Project) -> None:
    inbox, lake = project.folder / "gone" / "inbox", project.folder / "gone" / "lake"
    inbox.mkdir(parents=True)

    def write(name: str, *rows: int) -> None:
        drop_file(inbox / f"{name}.json", ({"id": id_} for id_ in rows))

    def declare(type_: str) -> None:
        text = "connections:\n  go_f: {type: files, path: gone}\n"
        text += "sources:\n  go_s: {connection: go_f, path: inbox, trigger: {interval: 500ms},\n"
        text += f'    format: {{type: json, schema: "id {type_}"}}}}\n'
        text += "sinks:\n  go_t: {type: delta, from: go_s, connection: go_f, path: lake, "
        text += "trigger: {interval: 500ms}, on_replace: truncate}\n"
        project.write("gone", text)

    write("one", 1, 2)
    write("two", 3)
    declare("BIGINT")
    project.apply()
    eventually("3 rows", lambda: ids(lake) == [1, 2, 3])
    (inbox / "one.json").unlink()
    declare("INT")
    runs = project.run_ids("go_")

    done = project.apply("--allow-replace", "--no-live", code=8)
    outcomes = {one["address"]: one for one in done["changes"]}
    assert outcomes["source.go_s"]["status"] == "rejected"
    assert outcomes["sink.go_t"]["status"] == "pending"
    queries = project.queries()
    assert "1 of 2 files of source.go_s can't be read again" in queries["source.go_s"]["error"]
    assert "one.json" in queries["source.go_s"]["error"]
    # The former generations run on, and what they have written is whole.
    assert project.run_ids("go_") == runs
    write("three", 4)
    eventually("what comes next", lambda: ids(lake) == [1, 2, 3, 4])

    again = ("--replace", "source.go_s", "--allow-replace")
    assert project.apply(*again, code=7)["diagnostics"][0]["code"] == "MZ292"
    project.apply(*again, "--allow-loss")
    eventually("what is there", lambda: ids(lake) == [3, 4])
    assert {one["condition"] for one in project.queries().values()} == {"running"}


@pytest.mark.nightly
def test_several_sources_that_lose_with_a_canary_and_by_alter(project: Project) -> None:
    folders = {name: project.folder / "two" / name for name in "abc"}
    for folder in folders.values():
        folder.mkdir(parents=True)
        for id_ in (1, 2):
            (folder / f"{id_}.json").write_text(f'{{"id": {id_}}}\n')

    def declare(type_: str, trigger: str = "500ms") -> None:
        text = "connections:\n  tw_f: {type: files, path: two}\nsources:\n"
        for name in folders:
            wanted, every = ("BIGINT", trigger) if name == "c" else (type_, "500ms")
            text += f"  tw_{name}: {{connection: tw_f, path: {name}, trigger: {{interval: {every}}},\n"
            text += f'    format: {{type: json, schema: "id {wanted}"}}}}\n'
        project.write("two", text)

    def rows(name: str) -> int:
        return sum(step["rows"] for step in project.json("steps", f"source.tw_{name}")["steps"])

    declare("BIGINT")
    project.apply()
    eventually("all are read", lambda: [rows(name) for name in folders] == [2, 2, 2])
    for name in "ab":
        (folders[name] / "1.json").unlink()
    declare("INT", trigger="400ms")

    # All that lose are named at once.
    refused = project.apply("--canary", "--allow-replace", code=7)["diagnostics"]
    assert [(one["code"], one["address"]) for one in refused] == [
        ("MZ292", "source.tw_a"),
        ("MZ292", "source.tw_b"),
    ]
    # What begins anew waits for the canary, which restarts.
    done = project.apply("--canary", "--allow-replace", "--allow-loss")
    assert [(one["address"], one["holds"]) for one in done["canaries"]] == [
        ("source.tw_c", ["source.tw_a", "source.tw_b"])
    ]
    assert {one["status"] for one in done["changes"]} == {"applied"}
    eventually("what is left", lambda: [rows(name) for name in folders] == [1, 1, 2])

    moved = "ALTER CONNECTION tw_f SET PATH = 'elsewhere' WITH (VALIDATE)"
    for name, folder in folders.items():
        (project.folder / "elsewhere" / name).mkdir(parents=True)
        (project.folder / "elsewhere" / name / "2.json").write_bytes((folder / "2.json").read_bytes())
    state = project.state_bytes()
    (lost,) = project.json("alter", moved, "--allow-replace", "--auto-approve", code=7)["diagnostics"]
    assert (lost["code"], lost["address"]) == ("MZ292", "source.tw_c")
    assert project.state_bytes() == state
    project.json("alter", moved, "--allow-replace", "--allow-loss", "--auto-approve")
    eventually("what is there", lambda: [rows(name) for name in folders] == [1, 1, 1])
    losses = [one["commit"].get("losses", {}) for one in project.json("history", "-n", "2")["history"]]
    assert [sorted(one) for one in losses] == [["source.tw_c"], ["source.tw_a", "source.tw_b"]]
