"""A replace that would lose rows is refused before anything is touched, wherever that is found."""

from __future__ import annotations

import pytest

from examples.servers import KafkaBroker, produce_json
from tests.integration.orders_shop import ids_in_delta
from tests.support import Make, Project, delete_records, drop_ids, eventually, kafka_connection, orders

LOST = "200 of 300 records of source.lo_s can't be read again"


def pipeline(prefix: str, source: str, schema: str, more: str = "") -> str:
    """A source of JSON, and a Delta table of its rows, which a replace empties first."""
    return (
        f"connections:\n{more}  {prefix}_f: {{type: files, path: {prefix}}}\n"
        f"sources:\n  {prefix}_s: {{{source}, trigger: {{interval: 500ms}},\n"
        f'    format: {{type: json, schema: "{schema}"}}}}\n'
        f"sinks:\n  {prefix}_t: {{type: delta, from: {prefix}_s, connection: {prefix}_f, path: lake, "
        "trigger: {interval: 500ms}, on_replace: truncate}\n"
    )


def test_records_that_retention_has_dropped(project: Project, kafka: KafkaBroker, topic: Make) -> None:
    name, lake = topic("loss", partitions=1), project.folder / "lo" / "lake"
    produce_json(kafka.bootstrap, name, orders(0, 300))

    def declare(type_: str) -> None:
        schema = f"id {type_}, customer STRING, amount DECIMAL(10,2)"
        broker = kafka_connection("lo_k", kafka.bootstrap)
        project.write("loss", pipeline("lo", f"connection: lo_k, topic: {name}", schema, broker))

    declare("BIGINT")
    project.apply()
    eventually("300 rows", lambda: ids_in_delta(lake) == list(range(300)))
    delete_records(kafka, name, 200)
    declare("INT")
    before, runs = project.state_bytes(), project.run_ids("lo_")

    # In a plan with --live: above all else.
    saved = str(project.folder / "loss.plan")
    seen = project.run("plan", "--live", "--out", saved)
    assert seen.returncode == 0
    assert seen.stdout.startswith(f"! {LOST}: connection.lo_k"), seen.stdout
    assert "partition 0: 0–199" in seen.stdout.splitlines()[0]

    # Refused where a replacement is allowed, before anything is committed.
    for given in ((), (saved, "--no-live")):  # a saved plan remembers what was seen
        (refused,) = project.apply("--allow-replace", *given, code=7)["diagnostics"]
        assert (refused["code"], refused["summary"]) == ("MZ292", LOST)
    assert project.state_bytes() == before and project.run_ids("lo_") == runs
    assert ids_in_delta(lake) == list(range(300))
    done = project.apply(saved, "--allow-replace", "--allow-loss")
    newest, *_ = project.json("history", "-n", "1")["history"]
    assert newest["commit"]["losses"]["source.lo_s"].startswith(f"{LOST}: connection.lo_k")
    assert f"Lost:    {LOST}: " in project.run("history", "show", str(newest["serial"])).stdout
    assert {one["status"] for one in done["changes"]} <= {"applied", None}
    eventually("what is left", lambda: ids_in_delta(lake) == list(range(200, 300)))
    assert project.json("plan")["changes"] == []


@pytest.mark.nightly
def test_files_that_are_gone_are_found_by_the_runner_before_it_stops_anything(project: Project) -> None:
    inbox, lake = project.folder / "go" / "inbox", project.folder / "go" / "lake"
    inbox.mkdir(parents=True)

    def declare(type_: str) -> None:
        project.write("gone", pipeline("go", "connection: go_f, path: inbox", f"id {type_}"))

    drop_ids(inbox, 1, 2)
    drop_ids(inbox, 3)
    declare("BIGINT")
    project.apply()
    eventually("3 rows", lambda: ids_in_delta(lake) == [1, 2, 3])
    (inbox / "1.json").unlink()
    declare("INT")
    runs = project.run_ids("go_")

    done = project.apply("--allow-replace", "--no-live", code=8)
    outcomes = {one["address"]: one for one in done["changes"]}
    assert outcomes["source.go_s"]["status"] == "rejected"
    assert outcomes["sink.go_t"]["status"] == "pending"
    queries = project.queries()
    error = queries["source.go_s"]["error"]
    assert "1 of 2 files of source.go_s can't be read again" in error and "1.json" in error
    # The former generations run on, and what they have written is whole.
    assert project.run_ids("go_") == runs
    drop_ids(inbox, 4)
    eventually("what comes next", lambda: ids_in_delta(lake) == [1, 2, 3, 4])

    again = ("--replace", "source.go_s", "--allow-replace")
    assert project.apply(*again, code=7)["diagnostics"][0]["code"] == "MZ292"
    project.apply(*again, "--allow-loss")
    eventually("what is there", lambda: ids_in_delta(lake) == [3, 4])
    assert {one["condition"] for one in project.queries().values()} == {"running"}


@pytest.mark.nightly
def test_several_sources_that_lose_with_a_canary_and_by_alter(project: Project) -> None:
    folders = {name: project.folder / "two" / name for name in "abc"}
    for folder in folders.values():
        folder.mkdir(parents=True)
        for id_ in (1, 2):
            drop_ids(folder, id_)

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
    assert [one["address"] for one in refused] == ["source.tw_a", "source.tw_b"]
    assert {one["code"] for one in refused} == {"MZ292"}
    # What begins anew waits for the canary, which restarts.
    done = project.apply("--canary", "--allow-replace", "--allow-loss")
    (canary,) = done["canaries"]
    assert (canary["address"], canary["holds"]) == ("source.tw_c", ["source.tw_a", "source.tw_b"])
    assert {one["status"] for one in done["changes"]} == {"applied"}
    eventually("what is left", lambda: [rows(name) for name in folders] == [1, 1, 2])

    moved = "ALTER CONNECTION tw_f SET PATH = 'elsewhere' WITH (VALIDATE)"
    for name in folders:
        (project.folder / "elsewhere" / name).mkdir(parents=True)
        drop_ids(project.folder / "elsewhere" / name, 2)
    state = project.state_bytes()
    (lost,) = project.json("alter", moved, "--allow-replace", "--auto-approve", code=7)["diagnostics"]
    assert (lost["code"], lost["address"]) == ("MZ292", "source.tw_c")
    assert project.state_bytes() == state
    project.json("alter", moved, "--allow-replace", "--allow-loss", "--auto-approve")
    eventually("what is there", lambda: [rows(name) for name in folders] == [1, 1, 1])
    losses = [one["commit"].get("losses", {}) for one in project.json("history", "-n", "2")["history"]]
    assert [sorted(one) for one in losses] == [["source.tw_c"], ["source.tw_a", "source.tw_b"]]
