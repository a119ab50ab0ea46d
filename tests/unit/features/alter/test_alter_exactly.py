"""`mzplan alter` commits exactly its edits, and lists the other changes in the files."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.operations.follower import OutcomeFollower
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runs import applied_with_another, edit, mzplan, state
from tests.unit.features.alter.alter_runs import SET, actions, alter, altered, planned
from tests.unit.reporters import SilentReporter
from tests.unit.small_projects import commit, observe, shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


# --- exactly its edit


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
