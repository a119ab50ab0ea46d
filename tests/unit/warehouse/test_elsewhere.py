"""A relative warehouse beside a remote state: another folder in each clone of the project (MZ341)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.operations.connections import warehouses_elsewhere
from mzplan.operations.project import open_project
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.elsewhere import place_of_warehouse
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
