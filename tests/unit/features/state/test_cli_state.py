"""`state …` and `import`: each edit takes the lock and commits a serial; edits that lose data are refused.
Messages about stored data before a deletion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.state import DroppedStorage, ProjectStatus
from mzplan.model.times import shortest
from mzplan.render.status import render_status
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runner import following
from tests.unit.cli_runs import STATE, Ran, apply, edit, failed, mzplan, run, state, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write(tmp_path / "p")
    apply(folder)
    return folder


def imported(folder: Path, address: str, *more: str) -> Ran:
    return mzplan(folder, "import", address, "--auto-approve", "--json", *more)


def record(folder: Path, address: str) -> dict[str, object]:
    """Return the record without the reason of its commit."""
    found = dict(state(folder)["resources"][address])
    assert address.startswith("connection.") or found.pop("because")["detail"]
    return found


def test_the_state_is_shown_and_mv_keeps_the_checkpoint(folder: Path) -> None:
    before = record(folder, "source.orders")
    listed = mzplan(folder, "state", "list", "--json").json()
    assert listed["serial"] == 1 and listed["resources"][3]["address"] == "source.orders"
    assert mzplan(folder, "state", "list").out.split() == [one["address"] for one in listed["resources"]]
    assert mzplan(folder, "state", "--json", "list").json() == listed
    shown = mzplan(folder, "state", "show", "source.orders").json()
    assert shown["body"]["topic"] == "orders" and shown["generation"] == 1
    assert mzplan(folder, "state", "show", "source.nobody").code == 64
    ran = mzplan(folder, "state", "mv", "source.orders", "source.sales", "--json")
    assert ran.code == 0 and ran.json()["serial"] == 2 and ran.json()["summary"]["move"] == 1
    assert record(folder, "source.sales") == before
    assert (folder / "state" / "history" / "00000001.json").exists()
    edit(folder, "orders: {conn", "sales: {conn")
    edit(folder, "from: orders", "from: sales")
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
    assert mzplan(folder, "state", "mv", "source.no", "source.x").code == 64


def test_rm_keeps_what_is_stored_and_import_takes_it_back(folder: Path) -> None:
    assert mzplan(folder, "state", "rm", "source.orders").code == 7  # sinks read it
    before = record(folder, "sink.few")
    for address, why in {"sink.few": "is in the state already", "sink.gone": "No file declares"}.items():
        ran = imported(folder, address)
        assert ran.code == 64 and why in ran.error()["summary"]  # neither has a storage to be named
    ran = mzplan(folder, "state", "rm", "sink.few")
    assert ran.code == 0 and "Their storage stays" in ran.out
    listed = mzplan(folder, "state", "list", "--json").json()
    assert listed["forgotten"] == [{"address": "sink.few", "id": before["id"], "generation": 1}]
    ran = imported(folder, "sink.few")
    assert ran.code == 7 and ran.error()["code"] == "MZ165"  # a dry instance has made no checkpoint
    (folder / "warehouse" / "checkpoints" / str(before["id"]) / "g1").mkdir(parents=True)
    assert mzplan(folder, "import", "sink.few").code == 64  # nobody can be asked
    ran = imported(folder, "sink.few")
    assert ran.code == 0 and ran.json()["changes"][0]["status"] == "applied"
    assert ran.json()["unaffected"] == 3  # k, orders and out: what is new is none of these
    assert record(folder, "sink.few") == before
    assert "forgotten" not in state(folder)
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0


def test_completion_needs_a_shell_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion").out == run("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    ran = run("completion")
    assert ran.code == 64 and "mzplan completion bash|zsh|fish" in ran.err


def test_import_by_id(folder: Path) -> None:
    wrong = "source.orders --id abc, connection.k, source.nobody --id abc, source.orders --id ../x"
    for words in wrong.split(", "):
        assert imported(folder, *words.split()).code == 64, words
    edit(folder, "  out:", "  third: {type: console, from: orders}\n  out:")
    ran = imported(folder, "sink.third")
    assert ran.code == 7 and "--id" in ran.error()["hint"]
    (folder / "warehouse" / "checkpoints" / "abc" / "g2").mkdir(parents=True)
    assert imported(folder, "sink.third", "--id", "abc", "--generation", "2").code == 0
    assert record(folder, "sink.third")["generation"] == 2
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0


def test_a_runner_keeps_forgotten_storage_and_goes_on_from_it(tmp_path: Path) -> None:
    folder = write(tmp_path, instance="embedded")
    with following(folder) as executor:
        apply(folder)
        before = record(folder, "sink.few")
        assert mzplan(folder, "state", "rm", "sink.few").code == 0
        (folder / "warehouse" / "checkpoints" / str(before["id"]) / "g1").mkdir(parents=True)
        ran = imported(folder, "sink.few", "--wait", "30s")
        assert ran.code == 0 and ran.json()["changes"][0]["status"] == "applied"
        store = Store(LocalBackend(folder / "state"), "shop")
        assert store.read_journal("local") == []
        accepted = store.read_accepted("local")[Address("sink", "few")]
        assert accepted.id == before["id"]
        assert Address("sink", "few") in executor.running()


def test_a_rollback_commits_an_earlier_serial(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    apply(folder)
    assert mzplan(folder, "state", "rollback").code == 64  # nobody can be asked
    ran = mzplan(folder, "state", "rollback", "--auto-approve", "--json")
    assert ran.code == 0 and ran.json()["serial"] == 3
    assert "a:9092" in (folder / STATE).read_text()
    edit(folder, "b:9092", "a:9092")
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
    assert mzplan(folder, "state", "rollback", "1", "--auto-approve").out.startswith("No changes")
    found = failed(folder, "state", "rollback", "77", "--auto-approve", code=7)
    assert found["code"] == "MZ038" and "`mzplan history` lists them" in found["hint"]


def test_old_serials_are_pruned(folder: Path) -> None:
    for verb in ("pause", "resume", "pause"):
        mzplan(folder, verb, "source.orders")
    serials = [one["serial"] for one in mzplan(folder, "history", "--json").json()["history"]]
    assert serials == [4, 3, 2, 1]
    assert mzplan(folder, "state", "prune", "--keep", "2").out == "Removed 1 serial from the history.\n"
    assert mzplan(folder, "state", "prune", "--keep", "2", "--json").json()["removed"] == []
    assert [one["serial"] for one in mzplan(folder, "history", "--json").json()["history"]] == serials[:3]
    assert mzplan(folder, "state", "rollback", "1", "--auto-approve").code == 7
    assert mzplan(folder, "state", "rollback", "2", "--auto-approve").code in (0, 8)


def test_a_state_is_pulled_and_pushed_only_where_it_belongs(folder: Path, tmp_path: Path) -> None:
    data = (folder / STATE).read_bytes()
    copy = tmp_path / "copy.json"
    assert mzplan(folder, "state", "pull", "--out", str(copy)).code == 0
    assert copy.read_bytes() == data
    assert mzplan(folder, "state", "push", str(copy), "--json").json() == {"serial": 1, "written": False}
    assert mzplan(folder, "pause", "sink.few").code == 0
    assert failed(folder, "state", "push", str(copy), code=7)["code"] == "MZ038"
    assert state(folder)["serial"] == 2
    assert mzplan(folder, "state", "push", str(copy), "--force", "--json").json()["serial"] == 3
    assert "override" not in record(folder, "sink.few")
    other = write(tmp_path / "other")
    apply(other)
    assert failed(other, "state", "push", str(copy), code=7)["code"] == "MZ034"
    copy.write_bytes(data.replace(b"a:9092", b"e:9092"))
    assert mzplan(other, "state", "push", str(copy), "--json").error()["code"] == "MZ030"
    assert mzplan(other, "state", "push", str(tmp_path / "none"), "--json").error()["code"] == "MZ030"


def test_a_lock_taken_by_hand_refuses_commits_until_it_is_released(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.operations.project.LOCK_WAIT", 0.05)
    ran = mzplan(folder, "state", "lock", "--reason", "moving house", "--json")
    id_ = ran.json()["lock"]["id"]
    for command in (("apply", "--auto-approve"), ("state", "rm", "sink.few"), ("pause", "sink.few")):
        found = failed(folder, *command, code=6)
        assert "moving house" in found["detail"] and f"mzplan state unlock {id_}" in found["hint"]
    assert mzplan(folder, "plan").code == 0
    assert mzplan(folder, "state", "unlock", "wrong").code == 64
    assert mzplan(folder, "state", "unlock", id_).code == 0
    assert mzplan(folder, "pause", "sink.few").code == 0
    with Store(LocalBackend(folder / "state"), "shop").lock("apply") as info:
        assert f"pid {os.getpid()}, alive" in failed(folder, "state", "unlock", info.id, code=6)["detail"]


# --- stored data before a deletion: which data, when, and how to keep it


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a committed project with stored data, whose runner is on another machine."""
    folder = write(tmp_path, "cluster")
    assert mzplan(folder, "apply", "--auto-approve", "--no-live", "--wait", "0s").code == 8
    for kind, size in (("collections", 3 << 20), ("checkpoints", 2048)):
        place = folder / "warehouse" / kind / state(folder)["resources"]["source.orders"]["id"] / "g1"
        place.mkdir(parents=True)
        with (place / "data").open("wb") as file:
            file.truncate(size)
    return folder


def notice(ran: Ran) -> Any:
    (found,) = (d for d in ran.json()["diagnostics"] if d["code"] == "MZ152")
    return found


def test_plan_lists_the_deleted_data_and_the_deadline(stored: Path) -> None:
    pipeline = stored / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().partition("sources:")[0])
    found = notice(mzplan(stored, "plan", "--json"))
    assert found["severity"] == "notice" and " 7d " in found["summary"] and "3 queries" in found["summary"]
    place = f"({state(stored)['resources']['source.orders']['id']}, generation 1)"
    assert f"source.orders: collection of 3.0 MiB and checkpoint of 2.0 KiB {place}" in found["detail"]
    assert "sink.few: checkpoint (nothing yet)" in found["detail"]


def test_the_suggested_command_keeps_the_data(stored: Path) -> None:
    ran = mzplan(stored, "destroy", "--target", "source.orders")
    assert "state rollback 1." in ran.out
    assert ran.code == 64  # there is no terminal on which to confirm
    line = next(one for one in ran.out.splitlines() if "state rm" in one)
    words = line.partition("mzplan state rm ")[2].partition(";")[0].split()
    assert sorted(words) == ["sink.few", "sink.out", "source.orders"]
    ran = mzplan(stored, "state", "rm", *words)
    assert "stays" in ran.out and (stored / "warehouse" / "collections").is_dir()


def test_a_replacement_lists_the_data_of_its_old_generation(stored: Path) -> None:
    edit(stored, "project: shop\n", "project: shop\nretain_dropped: 90m\n", "mzplan.yaml")
    found = notice(mzplan(stored, "plan", "--replace", "sink.few", "--json"))
    assert " 90m " in found["summary"] and "sink.few" in found["detail"] and found["hint"] == ""
    texts = {0.0: "0s", 1.5: "1.5s", 90.0: "90s", 3600.0: "1h", 86_400.0: "1d"}
    assert {seconds: shortest(seconds) for seconds in texts} == texts


def test_no_message_without_stored_data(folder: Path) -> None:
    assert "MZ152" not in mzplan(folder, "destroy", "--auto-approve").out


def test_status_lists_dropped_storage_in_one_line() -> None:
    addresses = [f"source.{name}" for name in "abcde"]
    dropped = tuple(DroppedStorage(address=a, id=a, generation=1, dropped_at=0.0) for a in addresses)
    text = render_status(ProjectStatus(serial=1, instances=(), queries=(), dropped=dropped))
    (line,) = (one for one in text.splitlines() if "retain_dropped" in one)
    assert "5 generations" in line and "source.c g1 and 2 more" in line and "mzplan state gc" not in line
