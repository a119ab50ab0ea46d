"""A relative warehouse beside a remote state: another folder in each clone of the project (MZ341)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.model.observed import Observation, Status
from mzplan.model.state import State
from mzplan.operations.connections import warehouses_elsewhere
from mzplan.operations.project import open_project
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.elsewhere import place_of_warehouse, stored_elsewhere
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import at, commit, shop

FORMER = "/elsewhere/warehouse on host"


def messages(clone: Path, state: State, warehouse: str) -> list[str]:
    (clone / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, warehouse=warehouse)
    found = warehouses_elsewhere(open_project(str(clone)), state, {"local": status})
    return [f"{name}: {diagnostic.summary}. {diagnostic.detail}" for name, diagnostic in found]


def test_a_clone_names_the_warehouse_of_the_last_runner(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, commit(shop()), FORMER)
    assert found.startswith("local: The data of instance local is in another warehouse. ")
    assert FORMER in found and f"{tmp_path}/warehouse" in found


@pytest.mark.parametrize("warehouse", ["", FORMER], ids=["same-place", "moved-here"])
def test_a_project_with_its_own_data_is_fine(tmp_path: Path, warehouse: str) -> None:
    state, folder = commit(shop()), str(tmp_path / "warehouse")
    if warehouse:
        place = state.resources[at("source.orders")].place
        Path(Checkpoint.of(folder, *place).folder).mkdir(parents=True)
    assert messages(tmp_path, state, warehouse or place_of_warehouse(folder)) == []


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that shares its state with the folder of the last runner."""
    write(tmp_path, instance="embedded")
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    state = commit(shop())
    with store.lock("test"):
        store.commit(state, planned_on=store.read_state())
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, warehouse=FORMER)
    store.write_status(status)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    ["steps source.orders", "verify source.orders", "verify --content sink.orders_pg", "up"],
)
def test_each_command_names_the_cause_once(clone: Path, command: str) -> None:
    ran = mzplan(clone, *command.split())
    assert ran.code == 7 and ran.err.count("error[") == 1, ran.err
    assert "error[MZ341]: The data of instance local is in another warehouse" in ran.err and FORMER in ran.err


def test_status_names_the_cause_once(clone: Path) -> None:
    shown = mzplan(clone, "status").out
    assert shown.count("MZ341") == 1 and FORMER in shown
    assert FORMER in mzplan(clone, "status", "--json").json()["instances"][0]["elsewhere"]
    error = stored_elsewhere(FORMER, str(clone / "warehouse"), at("source.orders"))
    store = Store(LocalBackend(clone / "state"), "shop")
    status = store.read_status("local")
    assert status is not None
    seen = {
        address: Observation(
            address=address,
            generation=1,
            digest="",
            wanted_digest="",
            wanted_generation=1,
            condition="failed",
            error=f"{error.summary}. {error.detail}",
            error_code=error.code,
        )
        for address in (at("source.orders"), at("sink.orders_pg"))
    }
    store.write_status(replace(status, observations=seen))
    shown = mzplan(clone, "status").out
    assert shown.count("MZ341") == 1 and "sink.orders_pg, source.orders: [MZ341]" in shown
