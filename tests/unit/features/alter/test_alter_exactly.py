"""`mzplan alter` commits exactly its edits, and lists the other changes in the files."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Observation, Status
from mzplan.model.state import ResourceState, State
from mzplan.operations.follower import OutcomeFollower
from mzplan.schema.description import Description
from tests.unit.cli_runner import following
from tests.unit.cli_runs import Ran, applied_with_another, run, write

SET = "ALTER CONNECTION k SET BROKERS = ('b:9092')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


def alter(folder: Path, statement: str, *options: str, **more: Any) -> Ran:
    return run("-C", str(folder), "alter", statement, *options, **more)


def state(folder: Path) -> Any:
    return json.loads((folder / "state" / "mzplan.state.json").read_text())


def bodies(folder: Path) -> dict[str, Any]:
    return {name: found["body"] for name, found in state(folder)["resources"].items()}


def replaced(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def notices(ran: Ran) -> dict[str, str]:
    return {d["code"]: d["summary"] for d in ran.json()["diagnostics"]}


# --- exactly its edit


def test_a_draft_is_left_out_and_listed(folder: Path) -> None:
    replaced(folder / "more.yaml", "topic: second", "topic: draft")
    replaced(folder / "pipeline.yaml", "{type: kafka,", "{type: kafka, description: a draft,")
    ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert {c["address"] for c in ran.json()["changes"]} == {"connection.k", "source.orders", "source.second"}
    assert ran.json()["left_out"] == ["connection.k", "source.second"]
    assert notices(ran)["MZ145"] == "2 other changes in the files are left out"
    assert bodies(folder)["connection.k"] == {"type": "kafka", "brokers": ["b:9092"]}
    assert bodies(folder)["source.second"]["topic"] == "second"
    text = (folder / "pipeline.yaml").read_text()
    assert "description: a draft" in text and "b:9092" in text
    plan = run("-C", str(folder), "plan", "--json").json()["changes"]
    assert {c["address"] for c in plan} == {"connection.k", "source.second"}


def test_a_draft_with_mistakes_stops_no_repair(folder: Path) -> None:
    (folder / "draft.yaml").write_text("sources:\n  broken: {connection: nowhere, topic: t}\n")
    ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert "MZ146" in notices(ran) and bodies(folder)["connection.k"]["brokers"] == ["b:9092"]
    assert "b:9092" in (folder / "pipeline.yaml").read_text()
    refused = alter(folder, "ALTER CONNECTION k DROP BROKERS", "--auto-approve", "--json")
    assert refused.code == 1 and refused.error()["code"] == "MZ006"


DRAFT = """\
connections:
  fresh: {type: kafka, brokers: ['f:1']}
  broken: {type: kafka}
sources:
  lost: {connection: nowhere, topic: t, format: {type: json, schema: 'id BIGINT'}}
"""


def test_what_a_draft_leaves_out_is_listed_in_spite_of_its_mistakes(folder: Path) -> None:
    (folder / "draft.yaml").write_text(DRAFT)
    replaced(folder / "more.yaml", "topic: second", "topic: draft")
    ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert notices(ran).keys() >= {"MZ145", "MZ146"}
    assert ran.json()["left_out"] == ["connection.broken", "connection.fresh", "source.lost", "source.second"]
    (folder / "draft.yaml").write_text("connections: [")  # nobody knows what it declares
    ran = alter(folder, "ALTER CONNECTION k SET BROKER = 'c:1'", "--auto-approve", "--json")
    assert ran.code == 0 and ran.json()["left_out"] == ["source.second"]


def test_what_is_declared_is_not_denied_for_the_mistakes_of_something_else(folder: Path) -> None:
    (folder / "draft.yaml").write_text(DRAFT)
    ran = alter(folder, "ALTER SOURCE second SET CONNECTION fresh", "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert {c["address"]: c["action"] for c in ran.json()["changes"]} == {
        "connection.fresh": "create",
        "source.second": "update",
    }
    for statement, column in (
        ("ALTER SOURCE second SET CONNECTION broken", 36),
        ("ALTER SOURCE second SET (CONNECTION = broken, DESCRIPTION = 'x')", 39),
        ("ALTER CONNECTION IF EXISTS broken SET BROKER 'x:1'", 28),
    ):
        ran = alter(folder, statement, "--auto-approve", "--json")
        found = ran.error()
        assert (ran.code, found["code"], found["range"]["column"]) == (1, "MZ146", column), found
        assert "brokers" in found["detail"] and "draft.yaml:3:3" in found["detail"]
    assert alter(folder, "ALTER SOURCE second SET CONNECTION freshly", "--json").error()["code"] == "MZ073"
    (folder / "draft.yaml").write_text("connections: [")
    ran = alter(folder, "ALTER SOURCE second SET CONNECTION other", "--auto-approve", "--json")
    assert ran.error()["code"] == "MZ146" and "draft.yaml" in ran.error()["detail"]


def test_what_the_files_say_already_is_committed_all_the_same(folder: Path) -> None:
    replaced(folder / "pipeline.yaml", "a:9092", "b:9092")
    ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 0 and ran.json()["edit"] is None and "left_out" not in ran.json()
    assert bodies(folder)["connection.k"]["brokers"] == ["b:9092"]


def test_a_draft_of_the_same_property_gives_way(folder: Path) -> None:
    replaced(folder / "pipeline.yaml", "a:9092", "draft:9092")
    ran = alter(folder, "ALTER CONNECTION k SET BROKERS = ('a:9092')", "--auto-approve", "--json")
    assert ran.code == 0 and ran.json()["changes"] == [] and state(folder)["serial"] == 1
    assert '"a:9092"' in (folder / "pipeline.yaml").read_text()


def test_what_is_not_committed_is_only_edited(folder: Path) -> None:
    (folder / "new.yaml").write_text("connections:\n  new: {type: kafka, brokers: ['n:1']}\n")
    ran = alter(folder, "ALTER CONNECTION new SET BROKER 'm:1'", "--auto-approve", "--json")
    assert ran.code == 0 and state(folder)["serial"] == 1
    assert notices(ran) == {"MZ145": "connection.new is not committed yet"} and "left_out" not in ran.json()
    assert "m:1" in (folder / "new.yaml").read_text()
    ran = alter(folder, "ALTER SOURCE second SET CONNECTION new", "--auto-approve", "--json")
    assert {c["address"]: c["action"] for c in ran.json()["changes"]} == {
        "connection.new": "create",
        "source.second": "update",
    }


@pytest.mark.parametrize("used", [False, True])
def test_what_is_not_committed_is_validated_where_that_is_asked_for(folder: Path, used: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        closed = server.getsockname()[1]
    draft = "connections:\n  new: {type: postgres, host: 127.0.0.1, port: 5432, database: d, user: u}\n"
    if used:
        draft += "sinks: {new_out: {from: orders, connection: new, table: public.t}}\n"
        replaced(folder / "mzplan.yaml", "{type: dry}", "{type: cluster}")
    (folder / "new.yaml").write_text(draft)
    statement = f"ALTER CONNECTION new SET PORT = {closed}"
    for asked in (f"{statement} WITH (VALIDATE)", "--dry-run"), (f"{statement} WITH (VALIDATE = true)",):
        ran = alter(folder, *asked, "--auto-approve", "--json")
        assert ran.code == 1, ran
        (found,) = [d for d in ran.json()["diagnostics"] if d["severity"] == "error"]
        assert (found["code"], found["address"]) == ("MZ050", "sink.new_out" if used else "connection.new")
        assert (folder / "new.yaml").read_text() == draft
    assert alter(folder, statement, "--auto-approve").code == 0
    assert str(closed) in (folder / "new.yaml").read_text()


# --- several statements


def test_several_statements_are_one_transaction(folder: Path, tmp_path: Path) -> None:
    repair = folder / "repair.sql"
    repair.write_text(f"-- the cluster's gone\n{SET};;\nALTER CONNECTION k2 SET BROKER 'y:1';\n")
    ran = run("-C", str(folder), "alter", "-f", str(repair), "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert [e["path"] for e in ran.json()["edits"]] == ["pipeline.yaml", "more.yaml"]
    assert state(folder)["serial"] == 2
    assert run("-C", str(folder), "plan", "--json").json()["changes"] == []
    before = (folder / "pipeline.yaml").read_bytes()
    wrong = "ALTER CONNECTION k SET BROKER 'x:1'; ALTER CONNECTION k2 DROP BROKERS"
    ran = run("-C", str(folder), "alter", "-f", "-", "--auto-approve", "--json", stdin=wrong)
    assert ran.code == 1 and ran.error()["range"]["column"] == 63
    assert (folder / "pipeline.yaml").read_bytes() == before and state(folder)["serial"] == 2
    assert run("-C", str(folder), "alter", "-f", "nowhere.sql").code == 64


def test_a_rename_keeps_what_runs(folder: Path) -> None:
    before = state(folder)["resources"]
    ran = alter(
        folder,
        "ALTER CONNECTION k RENAME TO main; ALTER SOURCE second RENAME TO other; "
        "ALTER CONNECTION main SET DESCRIPTION 'it'",
        "--auto-approve",
        "--json",
    )
    assert ran.code == 0, ran.out
    after = state(folder)["resources"]
    assert after["connection.main"]["id"] == before["connection.k"]["id"]
    assert after["source.other"]["id"] == before["source.second"]["id"]
    assert after["connection.main"]["body"]["lifecycle"] == {"moved_from": "k"}
    assert "connection: main" in (folder / "more.yaml").read_text()
    assert run("-C", str(folder), "plan", "--json").json()["changes"] == []


def test_a_new_description_restarts_nothing(folder: Path) -> None:
    ran = alter(folder, "ALTER SOURCE second SET (DESCRIPTION = 'it')", "--auto-approve", "--json")
    assert ran.code == 0 and [c["effect"] for c in ran.json()["changes"]] == ["in-place"]


# --- what is reached


def test_a_dry_instance_is_never_called_valid(folder: Path) -> None:
    ran = alter(folder, "VALIDATE CONNECTION k", "--json")
    assert ran.code == 7 and ran.error()["code"] == "MZ143"
    assert "source.orders: its instance local is dry" in ran.error()["detail"]


def test_a_dry_run_honours_validate(folder: Path) -> None:
    unreached = "ALTER CONNECTION k2 SET BROKER '127.0.0.1:1'"
    assert alter(folder, unreached, "--dry-run").code == 0
    ran = alter(folder, f"{unreached} WITH (VALIDATE)", "--dry-run", "--json")
    assert ran.code == 1 and "MZ050" in notices(ran)


def test_validation_that_a_dry_instance_leaves_out_is_named(folder: Path) -> None:
    asked = f"{SET} WITH (VALIDATE)"
    assert "MZ143" in notices(alter(folder, asked, "--dry-run", "--json"))
    assert "MZ143" not in notices(alter(folder, SET, "--dry-run", "--json"))
    ran = alter(folder, asked, "--auto-approve")
    assert ran.code == 0 and "Instance local is dry, so its queries were not validated" in ran.err


def test_another_connection_is_one_action_among_others(folder: Path) -> None:
    for statement in (
        "ALTER SOURCE second SET CONNECTION k2, SET DESCRIPTION = 'it' WITH (VALIDATE = false)",
        "ALTER SOURCE second SET TRIGGER INTERVAL '5s', SET CONNECTION = k",
    ):
        ran = alter(folder, statement, "--auto-approve", "--json")
        assert ran.code == 0, ran.out
    body = bodies(folder)["source.second"]
    assert body["connection"] == "k" and body["description"] == "it" and body["trigger"] == {"interval": "5s"}


def test_an_unused_connection_is_validated_by_any_runner(tmp_path: Path) -> None:
    folder = write(tmp_path, "cluster")
    with following(folder) as executor:
        assert run("-C", str(folder), "apply", "--auto-approve").code == 0
        asked: list[str] = []

        def check(description: Description) -> CheckResult:
            asked.append(str(description.address))
            found = Diagnostic(code="MZ050", summary="not reached", address=description.address)
            return CheckResult(diagnostics=(found,))

        executor.check_result = check
        (folder / "more.yaml").write_text("connections:\n  k2: {type: kafka, brokers: ['z:9092']}\n")
        ran = run("-C", str(folder), "apply", "--auto-approve", "--json")
        assert ran.code == 1 and ran.error()["address"] == "connection.k2" and asked == ["connection.k2"]
        executor.check_result = lambda description: CheckResult()
        assert run("-C", str(folder), "apply", "--auto-approve").code == 0
        executor.check_result = check
        ran = alter(folder, "ALTER CONNECTION k2 SET BROKER 'y:1'", "--auto-approve", "--json")
        assert ran.code == 1 and ran.error()["address"] == "connection.k2"


# --- other commands' queries


def test_what_another_serial_has_superseded_is_no_failure_of_this_command() -> None:
    def source(name: str) -> ResourceState:
        return ResourceState(address=Address("source", name), id=name, type="local", body={}, digest="1:a")

    mine, other = source("mine"), source("other")
    wanted = State(project="p", serial=2, resources={r.address: r for r in (mine, other)})

    def seen(resource: ResourceState, digest: str) -> Observation:
        return Observation(
            address=resource.address,
            generation=1,
            digest=digest,
            wanted_digest=digest,
            wanted_generation=1,
            condition="running",
        )

    observations = {mine.address: seen(mine, "1:a"), other.address: seen(other, "1:b")}

    class Silent:
        def outcome(self, outcome: Any) -> None: ...

        def waiting(self, waiting: Any, seconds: float) -> None: ...

    class Followed(OutcomeFollower):
        def _read(self) -> Any:
            return (
                Status(instance="local", epoch=1, serial=3, heartbeat=0.0, observations=observations),
                True,
                None,
            )

    follower = Followed(None, wanted, "local", {mine.address})  # type: ignore[arg-type]
    found = follower.follow(0.1, Silent(), lambda: None)
    assert {str(a): o.status for a, o in found.items()} == {"source.mine": "applied"}
    touched = Followed(None, wanted, "local", {mine.address, other.address})  # type: ignore[arg-type]
    found = touched.follow(0.1, Silent(), lambda: None)
    assert found[other.address].reason == "serial 3 has replaced this one"
