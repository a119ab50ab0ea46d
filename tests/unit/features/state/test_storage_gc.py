"""state gc: unused storage is listed, and removed only if it is old and its id was once in this state."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import MzplanError
from mzplan.operations.project import locked
from mzplan.schema.description import describe
from mzplan.store.backends.local import LocalBackend
from mzplan.store.journal import Dropped, Prepared
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.storage import missing_storage, places_below, remove_storage
from tests.unit.cli_runs import Ran, apply, failed, mzplan, write
from tests.unit.small_projects import commit, postgres, project, resource

ORDERS = Address("source", "orders")
OLD = time.time() - 8 * 86_400  # retain_dropped is a week


def aged(places: list[Path], changed: float = OLD) -> None:
    """Have storage be last written at this time, by default long ago."""
    for place in places:
        for path in (*place.rglob("*"), place):
            os.utime(path, (changed, changed))


def begin(warehouse: str, id_: str, generation: int) -> None:
    """Create a checkpoint as the first start of a query does."""
    metadata = Path(Checkpoint.of(warehouse, id_, generation).spark) / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("{}")


class Shop:
    """A committed project whose warehouse the test fills."""

    def __init__(self, folder: Path):
        self.folder = write(folder)
        apply(folder)
        self.store = Store(LocalBackend(folder / "state"), "shop")
        self.id = self.store.read_state().resources[ORDERS].id

    def stored(self, id_: str, generation: int, changed: float = OLD) -> list[Path]:
        found = []
        for kind in ("collections", "checkpoints"):
            place = self.folder / "warehouse" / kind / id_ / f"g{generation}"
            place.mkdir(parents=True)
            (place / "data").write_bytes(b"x" * 1000)
            found.append(place)
        aged(found, changed)
        return found

    def gc(self, *arguments: str) -> Ran:
        return mzplan(self.folder, "state", "gc", *arguments)

    def listed(self, *arguments: str) -> dict[tuple[str, int], Any]:
        ran = self.gc("--json", *arguments)
        assert ran.code == 0, ran
        return {(one["id"], one["generation"]): one for one in ran.json()["storage"]}

    def replaced(self) -> list[Path]:
        """Return a generation from the history that nothing uses, because its journal entry was lost."""
        return self.stored(self.id, 7)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


def test_storage_stays_until_its_replication_slot_is_dropped(shop: Shop) -> None:
    """The slot's server doesn't answer. Only the storage has the slot's name."""
    former = shop.replaced()
    columns = {"tables": ["t"], "schema": "id BIGINT", "key": ["id"]}
    orders = resource("source.orders", "postgres", connection="pg", **columns)
    resources = commit(project(postgres(host="127.0.0.1", port=1, password="x"), orders)).resources
    made = replace(describe(resources[ORDERS], resources), id=shop.id, generation=7)
    checkpoint = Checkpoint.of(str(shop.folder / "warehouse"), shop.id, 7)
    checkpoint.record_leaves(encode(made))
    aged(former)
    ran = shop.gc("--apply", "--json")
    assert ran.code == 1 and "127.0.0.1:1" in ran.out, ran
    assert all(path.is_dir() for path in former)
    checkpoint.record_leaves({})
    aged(former)
    assert shop.gc("--apply").code == 0 and not any(path.exists() for path in former)


def test_storage_that_is_half_removed_does_not_count_as_complete(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill in the middle of a removal and a rollback."""
    former, warehouse = shop.stored(shop.id, 1), str(shop.folder / "warehouse")
    begin(warehouse, shop.id, 1)
    monkeypatch.setattr("shutil.rmtree", mock.Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(MzplanError):
        remove_storage(warehouse, shop.id, 1)
    assert "MZ161" in {one.code for one in missing_storage(warehouse, ORDERS, (shop.id, 1), {})}
    shop.stored(shop.id, 7)
    ran = shop.gc("--apply", "--json")
    assert ran.code == 1 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ035"}
    assert any(place.exists() for place in former)
    monkeypatch.undo()
    remove_storage(warehouse, shop.id, 1)
    assert not any(place.exists() for place in former)


def test_storage_of_a_generation_that_has_not_begun_is_not_missing(shop: Shop) -> None:
    warehouse, sink = str(shop.folder / "warehouse"), Address("sink", "out")

    def codes(generation: int) -> list[str]:
        read = {ORDERS: (shop.id, generation)}
        return [found.code for found in missing_storage(warehouse, sink, ("0123456789abcdef", 1), read)]

    begin(warehouse, "0123456789abcdef", 1)
    assert codes(1) == ["MZ161"]  # the sink has read it
    assert codes(2) == ["MZ166"]
    begin(warehouse, shop.id, 2)
    assert codes(2) == ["MZ161"]


def test_old_unused_storage_is_removed_on_request(shop: Shop) -> None:
    current, former = shop.stored(shop.id, 1), shop.replaced()
    (one,) = shop.listed().values()
    assert (one["id"], one["generation"], one["address"]) == (shop.id, 7, "source.orders")
    assert (one["what"], one["bytes"], one["kept"]) == (["checkpoint", "collection"], 2000, None)
    assert one["changed"] == pytest.approx(OLD, abs=1)
    text = shop.gc().out
    assert "source.orders" in text and "2.0 KiB" in text and "--apply` removes 1 generation" in text
    assert all(place.exists() for place in (*current, *former))
    (one,) = shop.listed("--apply").values()
    assert one["removed"] is True
    assert all(place.exists() for place in current) and not any(place.exists() for place in former)
    assert shop.gc("--apply").out == "All storage in the warehouse is in use.\n"


def test_recent_storage_and_storage_of_other_states_stays(shop: Shop) -> None:
    lately, strange = shop.stored(shop.id, 8, time.time()), shop.stored("0123456789abcdef", 1)
    found = shop.listed("--apply")
    assert "retain_dropped" in found[shop.id, 8]["kept"]
    assert "never had that id" in found["0123456789abcdef", 1]["kept"]
    assert all(place.exists() for place in (*lately, *strange))
    assert shop.listed("--apply", "--foreign")["0123456789abcdef", 1]["removed"] is True
    assert not any(place.exists() for place in strange) and all(place.exists() for place in lately)


def test_storage_in_use_is_not_listed(shop: Shop) -> None:
    state = shop.store.read_state()
    record = state.resources[ORDERS]
    description = describe(record, state.resources)
    for id_, generation in ((shop.id, 1), ("accepted", 3), ("journalled", 4)):
        shop.stored(id_, generation)
    shop.store.write_journal("gone", [Dropped.of(ORDERS, "journalled", 4, OLD)])
    shop.store.write_accepted("other", {ORDERS: replace(description, id="accepted", generation=3)})
    assert shop.listed("--foreign", "--apply") == {}


def test_storage_that_any_serial_has_forgotten_with_state_rm_stays(shop: Shop) -> None:
    kept = shop.stored(shop.id, 1)
    for name in ("sink.out", "sink.few", "source.orders"):
        assert mzplan(shop.folder, "state", "rm", name).code == 0
    assert shop.listed("--apply") == {}
    assert mzplan(shop.folder, "state", "rollback", "--serial", "1", "--auto-approve").code in (0, 64)
    assert mzplan(shop.folder, "apply", "--auto-approve").code == 0
    assert shop.listed("--apply") == {} and all(place.exists() for place in kept)


def test_nothing_is_removed_while_a_command_or_runner_may_use_it(shop: Shop) -> None:
    former = shop.replaced()

    def refused(reason: str) -> bool:
        found = failed(shop.folder, "state", "gc", "--apply", code=7)
        return found["code"] == "MZ038" and reason in found["summary"]

    shop.store.write_prepared("local", [Prepared(id="x", from_id=shop.id, step=0)])
    assert refused("prepared")
    shop.store.write_prepared("local", [])
    lease = shop.store.leases.take("local", "test")
    (shop.folder / "state" / "status" / "local.json").unlink()
    assert refused("serial 0")
    shop.store.leases.renew(lease, released=True)
    function = locked.__wrapped__  # type: ignore[attr-defined]
    with shop.store.lock("import"), mock.patch.object(function, "__defaults__", (0.1,)):
        assert shop.gc("--apply").code == 6
    assert all(place.exists() for place in former)
    assert shop.gc().code == 0
    assert shop.gc("--apply").code == 0 and not any(place.exists() for place in former)


def test_with_a_damaged_history_or_an_empty_state_nothing_is_removed(shop: Shop) -> None:
    former = shop.replaced()
    assert mzplan(shop.folder, "pause", "source.orders").code == 0
    (first, *_) = sorted((shop.folder / "state" / "history").glob("*.json"))
    first.write_text("{")
    assert shop.gc("--apply").code == 1
    settings = shop.folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "state: {backend: local, path: elsewhere}\n")
    assert failed(shop.folder, "state", "gc", "--apply", "--foreign", code=7)["code"] == "MZ038"
    assert all(place.exists() for place in former)


def test_only_folders_that_mzplan_names_are_removed_and_no_link_is_followed(
    shop: Shop, tmp_path: Path
) -> None:
    collections, outside = shop.folder / "warehouse" / "collections", tmp_path / "precious"
    (outside / "g1").mkdir(parents=True)
    (outside / "g1" / "data").write_text("x")
    for name in ("g1", "a b", ".hidden", "x" * 65):
        (collections / name / "g9").mkdir(parents=True, exist_ok=True)
    for name in ("g01", "g-1", "g0", "g1x", "g"):
        (collections / shop.id / name).mkdir(parents=True)
    (collections / "linked").symlink_to(outside)
    (collections / shop.id / "g5").symlink_to(outside / "g1")
    (collections / "plain").write_text("a file")
    assert places_below(str(shop.folder / "warehouse")) == [("g1", 9)]
    assert set(shop.listed("--apply", "--foreign")) == {("g1", 9)}
    assert (outside / "g1" / "data").exists()
