"""A process that is killed at any failpoint: everything converges by itself.

Against the in-memory executor (real processes, no Spark). Kills of applies and runners on real servers are in
test_kills.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from mzplan.controller.memory import InMemoryExecutor
from mzplan.host.failpoints import Failpoint
from mzplan.model.observed import Status
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import encode_state
from mzplan.store.store import Store
from tests.faults.doomed import points, start_runner
from tests.stored_steps import StoredSource
from tests.support import Stopwatch, eventually, exit_code
from tests.unit.cli_runner import following
from tests.unit.cli_runs import apply, mzplan, write

APPLY = points("apply", "commit")
ALTER = points("alter", "apply", "commit")
APPEND = points("append")
RUNNER = points("runner")
CLAIMS = [Failpoint.STORAGE_JOURNALED, Failpoint.STORAGE_REMOVED]
TABLES = [Failpoint.STORAGE_EXPIRED, Failpoint.STORAGE_MERGED, Failpoint.STORAGE_RECLAIMED]
CANARY = points("canary")
# On real servers: test_sink_kills.py, test_letter_kills.py, test_current_kills.py, test_task_kills.py,
# tests/integration/spark/test_spark_task_kills.py.
_TASKS = ("backfill", "replay", "dead-letters", "recompute", "erasure", "migration", "task")
ELSEWHERE = points("source", "letters", "view", "sink", *_TASKS)

# Maintains a collection, and says what its tables were asked for.
MAINTAIN = """
import sys
from mzplan.spark.delta_storage import DeltaStorage
class Tables:
    def merge_files(self, collection): print("merge")
    def reclaim_files(self, collection, older, *, uncommitted=False): print("reclaim")
place = sys.argv[2], int(sys.argv[3])
storage = DeltaStorage(sys.argv[1], Tables(), merge_at=5)
storage.maintain(place, 4)
print(storage.extent(place).since)
"""


def killed(folder: Path, point: Failpoint, *arguments: str) -> None:
    """Run a command in a process of its own, which must die at the failpoint."""
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *arguments]
    environment = {**os.environ, "MZPLAN_FAILPOINT": point.value}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == -signal.SIGKILL, ran.stderr


class Followed(NamedTuple):
    """A project that a runner on the in-memory executor, in this process, follows."""

    store: Store
    executor: InMemoryExecutor


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Followed]:
    write(tmp_path, "cluster", "a")
    with following(tmp_path) as executor:
        yield Followed(Store(LocalBackend(tmp_path / "state"), "shop"), executor)


def test_each_failpoint_has_a_test() -> None:
    groups = (ALTER, RUNNER, CLAIMS, TABLES, CANARY, APPEND, ELSEWHERE)
    assert {point for group in groups for point in group} == set(Failpoint)


@pytest.mark.parametrize("point", APPLY)
def test_apply_killed_anywhere_converges(tmp_path: Path, follower: Followed, point: Failpoint) -> None:
    apply(tmp_path)
    before = {a: r.run_id for a, r in follower.executor.running().items()}
    write(tmp_path, "cluster", "b")

    killed(tmp_path, point, "apply", "--auto-approve")

    committed = follower.store.read_state().serial
    assert committed in (1, 2)
    assert bool(mzplan(tmp_path, "plan", "--json").json()["changes"]) == (committed == 1)

    apply(tmp_path)
    assert follower.store.read_state().serial == 2
    after = {str(a): r.run_id for a, r in follower.executor.running().items()}
    changed = {str(a) for a, run in before.items() if after[str(a)] != run}
    assert changed == {"source.orders"}
    starts = [name for what, name in follower.executor.log if what == "start"]
    assert len(starts) == 4  # three at first, and the one restart: never twice
    assert mzplan(tmp_path, "plan", "--json").json()["changes"] == []


@pytest.mark.parametrize("point", ALTER)
def test_alter_killed_anywhere_is_finished_or_undone(
    tmp_path: Path, follower: Followed, point: Failpoint
) -> None:
    apply(tmp_path)
    file = tmp_path / "pipeline.yaml"
    old, new = file.read_bytes(), file.read_bytes().replace(b"a:9092", b"b:9092")
    state = (tmp_path / "state" / "mzplan.state.json").read_bytes()
    statement = "ALTER CONNECTION k SET BROKER 'b:9092'"

    killed(tmp_path, point, "alter", statement, "--auto-approve")

    # Whatever the files say just now: what anybody reads next is both, or neither. Looking writes nothing.
    left = file.read_bytes()
    planned = mzplan(tmp_path, "plan", "--json").json()
    assert planned["changes"] == [] and planned["diagnostics"] == []
    assert file.read_bytes() == left
    apply(tmp_path)
    committed = follower.store.read_state().serial
    assert file.read_bytes() == (new if committed == 2 else old)
    assert committed == 2 or (tmp_path / "state" / "mzplan.state.json").read_bytes() == state
    assert not (tmp_path / ".mzplan" / "alter.json").exists()

    assert mzplan(tmp_path, "alter", statement, "--auto-approve").code == 0
    assert file.read_bytes() == new
    assert follower.store.read_state().serial == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["mzplan.yaml", "pipeline.yaml"]
    starts = [name for what, name in follower.executor.log if what == "start"]
    assert len(starts) == 4  # three at first, and the one restart: never twice


def hosted_in_memory(folder: Path) -> None:
    """The committed state as of a dry instance: a runner goes by what is committed, not by its files."""
    store = Store(LocalBackend(folder / "state"), "shop")
    state = store.read_state()
    dry = {name: replace(instance, type="dry") for name, instance in state.instances.items()}
    store.backend.write(STATE_KEY, encode_state(replace(state, instances=dry)))


@pytest.mark.parametrize(
    ("point", "first"),
    [
        *((p, []) for p in RUNNER),
        *((p, ["--canary"]) for p in (*CANARY, Failpoint.RUNNER_STARTED_NEW)),
    ],
)
def test_a_runner_killed_anywhere_is_succeeded(tmp_path: Path, point: Failpoint, first: list[str]) -> None:
    # A dry instance's runner process is the in-memory executor.
    write(tmp_path, "dry", "a")
    more = 'sources: {more: {connection: k, topic: more, format: {type: json, schema: "id BIGINT"}}}\n'
    (tmp_path / "more.yaml").write_text(more)
    apply(tmp_path)
    write(tmp_path, "cluster", "b")  # commits without a runner: exit 8, and the runner's work is still to do
    # With a canary: killed between its restart, its verdict and the release of the other one.
    committed = mzplan(tmp_path, "apply", "--auto-approve", "--no-live", "--wait", "1s", *first)
    assert committed.code == 8, committed
    write(tmp_path, "dry", "b")
    hosted_in_memory(tmp_path)

    doomed = start_runner(tmp_path, point)
    assert exit_code(doomed) == -signal.SIGKILL, (tmp_path / "runner.log").read_text()
    status = succeeded(tmp_path)
    assert [(v.serial, v.passed) for v in status.canaries.values()] == [(2, True)] * len(first)


def _leads(store: Store, pid: int, *, serial: int) -> bool:
    """Whether a runner leads, and has reported on a serial itself: the last one's report stays till then."""
    leader, status = store.leases.leader("local"), store.read_status("local")
    if leader is None or leader.pid != pid or status is None:
        return False
    return (status.epoch, status.serial) == (leader.epoch, serial)


def succeeded(folder: Path) -> Status:
    """A successor of a killed runner does what serial 2 says, all of it, and ends when it is told to."""
    successor = start_runner(folder)
    store = Store(LocalBackend(folder / "state"), "shop")
    try:
        wanted = {a: r.digest for a, r in store.read_state().resources.items() if a.is_query}
        waited = Stopwatch()
        while waited.seconds < 60:
            status, leader = store.read_status("local"), store.leases.leader("local")
            leads = leader is not None and leader.pid == successor.pid
            if leads and status and status.serial == 2 and not store.read_journal("local"):
                seen = {a: o.digest for a, o in status.observations.items() if o.condition == "running"}
                if seen == wanted and set(store.read_accepted("local")) == set(wanted):
                    break
            time.sleep(0.05)
        else:
            pytest.fail((folder / "runner.log").read_text())
        assert store.read_prepared("local") == []
    finally:
        successor.send_signal(signal.SIGTERM)
        assert exit_code(successor) == 0, (folder / "runner.log").read_text()
    assert store.leases.leader("local") is None
    lease = store.leases.read("local")
    assert lease is not None and lease.released
    return status


@pytest.mark.parametrize("point", [Failpoint.RUNNER_FOLLOWED, *CLAIMS])
def test_a_successor_drops_what_a_killed_runner_was_dropping(tmp_path: Path, point: Failpoint) -> None:
    """Killed in the middle of a serial without a source and its sink: nothing of them runs again, and their
    storage is removed once. A controller validates a drop against what it knew before it was killed
    (tests/contract)."""
    write(tmp_path, "dry", "a")
    settings = tmp_path / "mzplan.yaml"
    settings.write_text(settings.read_text() + "retain_dropped: 0s\n")
    more = 'sources: {more: {connection: k, topic: more, format: {type: json, schema: "id BIGINT"}}}\n'
    (tmp_path / "more.yaml").write_text(more + "sinks: {more_out: {type: console, from: more}}\n")
    apply(tmp_path)
    # It would die of serial 1, too, so another runner takes that in.
    is_first = point == Failpoint.RUNNER_FOLLOWED
    doomed = start_runner(tmp_path, "" if is_first else point)
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    eventually("it has taken in serial 1", lambda: _leads(store, doomed.pid, serial=1))
    if is_first:
        doomed.send_signal(signal.SIGTERM)
        assert exit_code(doomed) == 0
    dropped = {r.id for a, r in store.read_state().resources.items() if a.name.startswith("more")}
    (tmp_path / "more.yaml").unlink()
    text = settings.read_text()
    settings.write_text(text.replace("{type: dry}", "{type: cluster}"))
    applied = mzplan(tmp_path, "apply", "--auto-approve", "--wait", "1s")
    doomed = start_runner(tmp_path, point) if is_first else doomed
    # Storage is removed after all that a command waits for, which may just have seen it, or not.
    is_last = point == Failpoint.STORAGE_REMOVED
    assert applied.code in ((0, 8) if is_last else (8,)), applied
    assert exit_code(doomed) == -signal.SIGKILL, (tmp_path / "runner.log").read_text()
    if is_last:
        told = store.read_status("local")
        assert told is not None and told.serial == 2
        assert not [a for a in told.observations if a.name.startswith("more")]
    settings.write_text(text)
    hosted_in_memory(tmp_path)
    succeeded(tmp_path)
    log = (tmp_path / "runner.log").read_text()
    assert len(dropped) == 2 and all(f"removed storage {id_} g1" in log for id_ in dropped)


@pytest.mark.parametrize("point", TABLES)
def test_maintenance_that_is_killed_is_finished(tmp_path: Path, point: Failpoint) -> None:
    source = StoredSource(tmp_path / "warehouse")
    for step in range(6):
        source.run([{"id": step, "name": "x"}])
    source.history.index.append(source.history.tail(None))
    command = [sys.executable, "-c", MAINTAIN, str(source.warehouse), *map(str, source.place)]
    ran = subprocess.run(command, env={**os.environ, "MZPLAN_FAILPOINT": point.value}, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout.split() == ["merge", "reclaim", "4"]
    assert source.history.read().since == 4


def test_a_killed_append_is_known_when_it_is_repeated(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "pipeline.yaml").write_text('sources: {a: {type: local, schema: "id BIGINT"}}\n')
    apply(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n')
    append = ("append", "source.a", "--file", str(file), "--id", "monday", "--json")
    killed(tmp_path, Failpoint.APPEND_WRITTEN, *append)
    again = mzplan(tmp_path, *append).json()
    assert (again["step"], again["repeated"], again["differs"]) == (0, True, False)
    (steps,) = tmp_path.rglob("steps")
    (steps / ".half.arrow.0123456789ab.tmp").write_text("what a killed writer leaves")
    assert "source.a: step 1, 1 row" in mzplan(tmp_path, *append[:4]).out
    assert [path.suffix for path in sorted(steps.iterdir()) if not path.name.startswith(".lock")] == [
        ".arrow"
    ] * 2
