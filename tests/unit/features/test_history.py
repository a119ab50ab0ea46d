"""History: what is between two serials, read as a plan; and what each commit has recorded of itself."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_project
from mzplan.model.address import Address
from mzplan.model.history import QueryOutcome
from mzplan.model.state import State
from mzplan.operations.commits import record_outcome, with_present
from mzplan.operations.project import Outcome
from mzplan.render.history import render_entry, render_history
from mzplan.secrets.resolved import remember
from mzplan.store.backends.local import LocalBackend
from mzplan.store.formats import encode_state
from mzplan.store.store import Store, open_store
from tests.unit.cli_runs import apply, failed, mzplan, write
from tests.unit.host.test_git import commit as git_commit
from tests.unit.host.test_git import run as git
from tests.unit.reporters import SilentReporter

ORDERS, SINK = Address.parse("source.orders"), Address.parse("sink.orders_pg")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "TF_BUILD", "JENKINS_URL", "DRONE"):
        monkeypatch.delenv(name, raising=False)
    return write(tmp_path / "p")


def listed(folder: Path, *more: str) -> list[dict[str, Any]]:
    return mzplan(folder, "history", "--json", *more).json()["history"]  # type: ignore[no-any-return]


def test_every_commit_is_in_the_history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Nothing is committed yet." in mzplan(folder, "history").out
    digest = mzplan(folder, "plan", "--json").json()["digest"]
    apply(folder)
    write(folder, broker="b")
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("GITLAB_USER_LOGIN", "ann")
    apply(folder, "-m", "Move it \x1b[2J")
    monkeypatch.delenv("GITLAB_CI")
    for given in (("pause", "source.orders"), ("resume", "source.orders"), ("restart", "source.orders")):
        assert mzplan(folder, *given).code == 0
    assert mzplan(folder, "state", "mv", "sink.few", "sink.less").code == 0
    assert mzplan(folder, "state", "rm", "sink.less", "-m", "Not needed").code == 0
    undone = mzplan(folder, "state", "rollback", "5", "--auto-approve")
    assert "Undoes 2 commits:" in undone.out and "with state rm: Not needed" in undone.out
    assert mzplan(folder, "destroy", "--target", "sink.out", "--auto-approve").code == 0

    found = listed(folder)
    assert [one["serial"] for one in found] == list(range(9, 0, -1))
    assert [one["current"] for one in found] == [True, *[False] * 8]
    commits = {one["serial"]: one["commit"] for one in found}
    commands = "apply, apply, pause, resume, restart, state mv, state rm, state rollback, destroy"
    assert [commits[n]["command"] for n in range(1, 10)] == commands.split(", ")
    assert commits[1]["digest"] == digest and commits[1]["summary"] == {"create": 4}
    assert "actor" not in commits[1] and "message" not in commits[1]
    assert (commits[2]["ci"], commits[2]["actor"]) == ("gitlab", "ann")
    assert commits[2]["message"] == "Move it \\x1b[2J"
    assert commits[3]["message"] == "pause source.orders" and commits[8]["message"] == "Back to serial 5"
    ends = {one["serial"]: one["outcome"]["status"] for one in found}
    assert {ends[n] for n in (1, 2, 3, 4, 5, 8, 9)} == {"applied"}
    assert {ends[n] for n in (6, 7)} == {"committed"}
    assert [one["serial"] for one in listed(folder, "-n", "2")] == [9, 8]
    for serial, commit in commits.items():  # each reads like the plan that was committed
        plan = mzplan(folder, "history", "show", str(serial), "--json").json()["plan"]
        assert {name: n for name, n in plan["summary"].items() if n} == commit["summary"], serial
    assert "ann (gitlab, " in mzplan(folder, "history").out
    apply(folder)  # a query that was deleted and created again has a new checkpoint
    changes = mzplan(folder, "history", "diff", "8", "10", "--json").json()["plan"]["changes"]
    assert ("sink.out", "replace") in {(change["address"], change["action"]) for change in changes}


@pytest.mark.programs
def test_a_git_commit_is_the_message_only_of_unchanged_files(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git_commit(folder, "Orders, from Kafka")
    apply(folder)
    write(folder, broker="b")
    apply(folder)
    messages = {one["serial"]: one["commit"]["message"] for one in listed(folder)}
    assert messages == {1: "Orders, from Kafka", 2: "HEAD+ (Orders, from Kafka)"}


def test_a_serial_and_a_rollback_are_shown_as_a_plan_and_two_as_their_difference(
    folder: Path,
) -> None:
    apply(folder)
    write(folder, broker="b")
    planned = mzplan(folder, "plan").out.partition("\nDigest:")[0]
    apply(folder)
    shown = mzplan(folder, "history", "show", "2")
    assert planned in shown.out and "Ended:   applied" in shown.out
    back = mzplan(folder, "history", "diff", "2", "1")
    assert "brokers[0]: b:9092 → a:9092" in back.out
    document = mzplan(folder, "history", "show", "2", "--json").json()
    assert document["plan"]["digest"] == document["commit"]["digest"]
    assert document["plan"]["changes"][0]["fields"][0]["after"] == "b:9092"
    difference = mzplan(folder, "history", "diff", "1", "2", "--json").json()
    assert (difference["from"], difference["to"]) == (1, 2) and "digest" not in difference["plan"]
    gone = failed(folder, "history", "show", "7", code=7)
    assert gone["code"] == "MZ038" and "1 to 2" in gone["detail"]
    assert mzplan(folder, "pause", "source.orders").code == 0
    undone = mzplan(folder, "state", "rollback", "1", "--auto-approve").out
    assert "restarts nothing" not in undone and "as in serial" not in undone
    assert "paused: true → false" in undone
    assert "because connection.k changed: brokers[0] b:9092 → a:9092" in undone
    before, _, _ = mzplan(folder, "history", "show", "4").out.partition("Changes:")
    wanted = before.partition("\n\n")[2].partition("Still running")[0].strip()
    assert wanted and wanted in undone


def test_a_damaged_serial_is_not_a_damaged_state(folder: Path) -> None:
    """The printed fix is one of the history: what pushes a state would commit, and mend nothing."""
    apply(folder)
    for broker in ("b", "c"):
        write(folder, broker=broker)
        apply(folder)
    damaged = folder / "state" / "history" / "00000002.json"
    whole = damaged.read_bytes()
    for content in (b"{", whole.replace(b"b:9092", b"x:9092")):
        damaged.write_bytes(content)
        found = mzplan(folder, "history", "show", "3", "--json").error()
        assert found["code"] == "MZ030" and "history/00000002.json" in found["summary"]
        assert "delete it" in found["hint"] and "push" not in found["hint"]
    damaged.write_bytes(b"{")
    assert "delete it" in mzplan(folder, "history", "--json").error()["hint"]
    damaged.unlink()
    assert [one["serial"] for one in listed(folder)] == [3, 1]
    assert mzplan(folder, "history", "show", "3").code == 0
    # A state without the record of its commit is damaged.
    state = Store(LocalBackend(folder / "state"), "shop").read_state()
    by_hand = encode_state(dataclasses.replace(state, commit=None))
    (folder / "state" / "mzplan.state.json").write_bytes(by_hand)
    for command in ("history", "history show 3"):
        assert mzplan(folder, *command.split(), "--json").error()["code"] == "MZ030"


def test_a_recorded_failure_shows_no_secrets(tmp_path: Path) -> None:
    remember("hunter2-hunter2")
    store, lineage = Store(LocalBackend(tmp_path), "shop"), "l"
    state = State(project="shop", lineage=lineage, serial=3)
    reason = "hunter2-hunter2 \x1b\nmore"
    left = Outcome(address=SINK, status="failed", seconds=2.0, reason=reason, code="MZ050")
    good = Outcome(address=ORDERS, status="applied", seconds=4.0)
    record_outcome(store, SilentReporter(), state, {SINK: left, ORDERS: good})
    found = store.read_outcome(lineage, 3)
    assert found is not None and (found.status, found.converged, found.seconds) == ("failed", 1, 4.0)
    assert found.open == {SINK: QueryOutcome(status="failed", reason="*** \\x1b", code="MZ050")}


def test_the_history_says_which_pending_queries_have_converged_since(folder: Path) -> None:
    apply(folder)
    store = open_store(load_project(str(folder)))
    (entry,), status = store.read_history(), store.read_status("local")
    assert entry.outcome is not None and status is not None
    queries = sorted(status.observations)
    left = QueryOutcome(status="pending", reason="slow", code="MZ065")
    pending = replace(entry.outcome, status="pending", open=dict.fromkeys(queries, left))
    entry = replace(entry, outcome=pending)
    assert " pending, converged later " in render_history(with_present(store, [entry]))
    failing = replace(status.observations[queries[0]], condition="failed")
    store.write_status(replace(status, observations={**status.observations, queries[0]: failing}))
    (entry,) = with_present(store, [entry])
    assert " pending (1) " in render_history([entry])
    shown = render_entry(entry)
    assert f"  {queries[0]}: pending: [MZ065] slow" in shown
    assert f"  {queries[1]}: pending, converged later: [MZ065] slow" in shown
