"""`mzplan alter` commits exactly its edits, and lists the other changes in the files."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.operations.follower import OutcomeFollower
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runs import Ran, applied_with_another, edit, mzplan, state
from tests.unit.features.alter.alter_runs import SET, actions, alter, altered, planned
from tests.unit.reporters import SilentReporter
from tests.unit.small_projects import commit, observe, shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


def bodies(folder: Path) -> dict[str, Any]:
    return {name: found["body"] for name, found in state(folder)["resources"].items()}


def notices(ran: Ran) -> dict[str, str]:
    return {d["code"]: d["summary"] for d in ran.json()["diagnostics"]}


# --- exactly its edit


def test_other_pending_edits_are_left_out_and_listed(folder: Path) -> None:
    edit(folder, "topic: second", "topic: draft", "more.yaml")
    edit(folder, "{type: kafka,", "{type: kafka, description: a draft,")
    ran = altered(folder, SET)
    assert actions(ran).keys() == {"connection.k", "source.orders", "source.second"}
    assert ran.json()["left_out"] == ["connection.k", "source.second"]
    assert notices(ran)["MZ145"] == "2 other changes in the files are left out"
    assert bodies(folder)["connection.k"] == {"type": "kafka", "brokers": ["b:9092"]}
    assert bodies(folder)["source.second"]["topic"] == "second"
    text = (folder / "pipeline.yaml").read_text()
    assert "description: a draft" in text and "b:9092" in text
    assert planned(folder).keys() == {"connection.k", "source.second"}


DRAFT = """\
connections:
  fresh: {type: kafka, brokers: ['f:1']}
  broken: {type: kafka}
sources:
  lost: {connection: nowhere, topic: t, format: {type: json, schema: 'id BIGINT'}}
"""


def test_mistakes_in_other_edits_do_not_stop_a_repair(folder: Path) -> None:
    (folder / "draft.yaml").write_text(DRAFT)
    edit(folder, "topic: second", "topic: draft", "more.yaml")
    ran = altered(folder, SET)
    assert notices(ran).keys() >= {"MZ145", "MZ146"}
    assert ran.json()["left_out"] == ["connection.broken", "connection.fresh", "source.lost", "source.second"]
    assert bodies(folder)["connection.k"]["brokers"] == ["b:9092"]
    assert "b:9092" in (folder / "pipeline.yaml").read_text()
    assert altered(folder, "ALTER CONNECTION k DROP BROKERS", code=1).error()["code"] == "MZ006"
    (folder / "draft.yaml").write_text("connections: [")  # nobody knows what it declares
    ran = altered(folder, "ALTER CONNECTION k SET BROKER = 'c:1'")
    assert ran.json()["left_out"] == ["source.second"]


def test_a_new_connection_can_be_used_despite_mistakes_in_others(folder: Path) -> None:
    (folder / "draft.yaml").write_text(DRAFT)
    ran = altered(folder, "ALTER SOURCE second SET CONNECTION fresh")
    assert actions(ran) == {"connection.fresh": "create", "source.second": "update"}
    for statement, column in (
        ("ALTER SOURCE second SET CONNECTION broken", 36),
        ("ALTER SOURCE second SET (CONNECTION = broken, DESCRIPTION = 'x')", 39),
        ("ALTER CONNECTION IF EXISTS broken SET BROKER 'x:1'", 28),
    ):
        found = altered(folder, statement, code=1).error()
        assert (found["code"], found["range"]["column"]) == ("MZ146", column), found
        assert "brokers" in found["detail"] and "draft.yaml:3:3" in found["detail"]
    assert alter(folder, "ALTER SOURCE second SET CONNECTION freshly", "--json").error()["code"] == "MZ073"
    (folder / "draft.yaml").write_text("connections: [")
    found = altered(folder, "ALTER SOURCE second SET CONNECTION other", code=1).error()
    assert found["code"] == "MZ146" and "draft.yaml" in found["detail"]


def test_an_edit_of_the_same_property_is_committed_or_gives_way(folder: Path) -> None:
    edit(folder, "a:9092", "draft:9092")
    ran = altered(folder, "ALTER CONNECTION k SET BROKERS = ('a:9092')")
    assert ran.json()["changes"] == [] and state(folder)["serial"] == 1
    assert '"a:9092"' in (folder / "pipeline.yaml").read_text()
    edit(folder, "a:9092", "b:9092")
    ran = altered(folder, SET)
    assert ran.json()["edit"] is None and "left_out" not in ran.json()
    assert bodies(folder)["connection.k"]["brokers"] == ["b:9092"]


def test_an_uncommitted_connection_is_only_edited(folder: Path) -> None:
    (folder / "new.yaml").write_text("connections:\n  new: {type: kafka, brokers: ['n:1']}\n")
    ran = altered(folder, "ALTER CONNECTION new SET BROKER 'm:1'")
    assert state(folder)["serial"] == 1
    assert notices(ran) == {"MZ145": "connection.new is not committed yet"} and "left_out" not in ran.json()
    assert "m:1" in (folder / "new.yaml").read_text()
    ran = altered(folder, "ALTER SOURCE second SET CONNECTION new")
    assert actions(ran) == {"connection.new": "create", "source.second": "update"}


@pytest.mark.parametrize("used", [False, True])
def test_an_uncommitted_connection_is_validated_on_request(folder: Path, used: bool) -> None:
    draft = "connections:\n  new: {type: postgres, host: 127.0.0.1, port: 5432, database: d, user: u}\n"
    if used:
        draft += "sinks: {new_out: {from: orders, connection: new, table: public.t}}\n"
        edit(folder, "{type: dry}", "{type: cluster}", "mzplan.yaml")
    (folder / "new.yaml").write_text(draft)
    statement = "ALTER CONNECTION new SET PORT = 1"
    for asked in (f"{statement} WITH (VALIDATE)", "--dry-run"), (f"{statement} WITH (VALIDATE = true)",):
        ran = altered(folder, *asked, code=1)
        (found,) = [d for d in ran.json()["diagnostics"] if d["severity"] == "error"]
        assert (found["code"], found["address"]) == ("MZ050", "sink.new_out" if used else "connection.new")
        assert (folder / "new.yaml").read_text() == draft
    assert alter(folder, statement, "--auto-approve").code == 0
    assert "port: 1," in (folder / "new.yaml").read_text()


# --- several statements


def test_several_statements_are_one_transaction(folder: Path, tmp_path: Path) -> None:
    repair = folder / "repair.sql"
    repair.write_text(f"-- the cluster's gone\n{SET};;\nALTER CONNECTION k2 SET BROKER 'y:1';\n")
    ran = mzplan(folder, "alter", "-f", str(repair), "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert [e["path"] for e in ran.json()["edits"]] == ["pipeline.yaml", "more.yaml"]
    assert state(folder)["serial"] == 2
    assert planned(folder) == {}
    before = (folder / "pipeline.yaml").read_bytes()
    wrong = "ALTER CONNECTION k SET BROKER 'x:1'; ALTER CONNECTION k2 DROP BROKERS"
    ran = mzplan(folder, "alter", "-f", "-", "--auto-approve", "--json", stdin=wrong)
    assert ran.code == 1 and ran.error()["range"]["column"] == 63
    assert (folder / "pipeline.yaml").read_bytes() == before and state(folder)["serial"] == 2
    assert mzplan(folder, "alter", "-f", "nowhere.sql").code == 64


def test_a_rename_keeps_the_running_queries(folder: Path) -> None:
    before = state(folder)["resources"]
    renames = "ALTER CONNECTION k RENAME TO main; ALTER SOURCE second RENAME TO other"
    ran = altered(folder, f"{renames}; ALTER CONNECTION main SET DESCRIPTION 'it'")
    after = state(folder)["resources"]
    assert after["connection.main"]["id"] == before["connection.k"]["id"]
    assert after["source.other"]["id"] == before["source.second"]["id"]
    assert after["connection.main"]["body"]["lifecycle"] == {"moved_from": "k"}
    assert "restart" not in actions(ran).values()
    assert "connection: main" in (folder / "more.yaml").read_text()
    assert planned(folder) == {}


# --- other commands' queries


def test_a_query_that_a_later_serial_has_replaced_is_no_failure_of_this_command(tmp_path: Path) -> None:
    store = Store(LocalBackend(tmp_path), "shop")
    assert store.leases.acquire("local", "test") is not None
    wanted = commit(shop())
    changed = observe(wanted, orders_pg={"digest": "1:b", "wanted_digest": "1:b"})["local"]
    store.write_status(replace(changed, serial=wanted.serial + 1, heartbeat=time.time()))

    def outcomes(*touched: str) -> dict[str, tuple[str, str]]:
        follower = OutcomeFollower(store, wanted, "local", {Address.parse(name) for name in touched})
        found = follower.follow(0.1, SilentReporter(), lambda: None)
        return {str(address): (one.status, one.reason) for address, one in found.items()}

    assert outcomes("source.orders") == {"source.orders": ("applied", "")}
    found = outcomes("source.orders", "sink.orders_pg")
    assert found["sink.orders_pg"][1] == "serial 2 has replaced this one"
