"""Each request that an apply makes of an object store fails, and each COMMIT of PostgreSQL: undone; done,
with its answer lost; and with the server gone from then on."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.store.backends.objects import ObjectStoreBackend
from mzplan.store.store import Store
from tests.contract import stores
from tests.faults.campaigns import Before, checkout, ended
from tests.faults.failing_objects import FailingObjects
from tests.faults.proxy import Proxy
from tests.unit.cli_runs import Ran, apply, write

FAULTS: dict[str, dict[str, Any]] = {
    "refused": {"answer": "refused"},
    "an error": {"answer": "error"},
    "an error after it": {"answer": "error", "late": True},
    "asked again": {"answer": "asked again", "late": True},
    "cut before it": {},
    "cut after it": {"late": True},
    "gone before it": {"lasting": True},
    "gone after it": {"late": True, "lasting": True},
}
STATE = {"backend": "object-store", "url": "s3://bucket/shop", "region": "r"}


def store_of(folder: Path) -> Store:
    return Store(ObjectStoreBackend({"url": STATE["url"]}, str(folder)), "shop")


def unlocked(folder: Path, server: FailingObjects, ran: Ran, id_: str) -> None:
    """By the line that the command has shown, or that the next one shows; the command's process has ended."""
    with mock.patch("mzplan.store.backends.backend.is_alive", lambda *_: False):
        line = f"mzplan state unlock {id_}"
        if line not in ran.out:
            ran = ended(folder, server.failing(), "apply", "--auto-approve")
        assert ran.code in (1, 6, 8) and line in ran.out, ran
        assert ended(folder, server.failing(), *line.split()[1:]).code == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_each_request_of_an_apply(tmp_path: Path, fault: str) -> None:
    server = FailingObjects()
    folder = checkout(tmp_path, STATE)
    command = ("apply", "--auto-approve", "--parallelism", "2", "--var")
    with server.failing():
        apply(folder)
        before = len(server.requests)
        apply(folder, *command[2:], "broker=b")
        store = store_of(folder)
        count = len(server.requests) - before
        assert count > 20
        mistaken, hit = list[str](), set[str]()
        for number in reversed(range(count)):  # what is kept of a serial already is not written again
            project = Before(folder, store)
            faulty = FailingObjects(at=number, store=server.store, **FAULTS[fault])
            ran = ended(folder, faulty.failing(), *command, f"broker=c{number}")
            hit.add(faulty.requests[number])
            try:
                if (held := store.holder()) is not None:
                    unlocked(folder, server, ran, held.id)
                project.holds(ran)
                project.goes_on()
            except AssertionError as problem:
                what = f"{number}: {faulty.requests[number]}"
                mistaken.append(f"{what}: {re.sub(r'assert ', '', str(problem))[-900:]}")
        assert {"put mzplan.state.json", "put lock", "delete lock"} <= hit
        assert not mistaken, "\n\n".join([f"{len(mistaken)} of {count}", *mistaken])


@pytest.mark.parametrize("lasting", [False, True], ids=["", "gone"])
@pytest.mark.parametrize("late", [False, True], ids=["before it", "after it"])
def test_each_commit_of_postgres(
    request: pytest.FixtureRequest, tmp_path: Path, late: bool, lasting: bool
) -> None:
    server, database = request.getfixturevalue("postgres"), request.getfixturevalue("database")("answers")
    case = stores.postgres(tmp_path, server, database)
    proxy = Proxy(server.port)
    folder = checkout(tmp_path, {**case.make.args[1], "port": proxy.port})  # type: ignore[attr-defined]
    apply(folder)
    proxy.watched = b"COMMIT"
    apply(folder, "--parallelism", "2", "--var", "broker=b")
    count, store = proxy.count, case.make()
    assert count > 5
    unknown = 0
    for number in range(count):
        apply(folder, "--var", f"broker=b{number}")  # nothing of the next serial is kept yet
        project = Before(folder, store)
        proxy.count, proxy.lost_at, proxy.late, proxy.lasting = 0, number, late, lasting
        command = ("apply", "--auto-approve", "--parallelism=2", f"--var=broker=c{number}")
        ran = ended(folder, contextlib.nullcontext(), *command)
        assert proxy.count > number
        proxy.lost_at = -1
        proxy.mend()
        project.holds(ran)
        unknown += project.is_unknown(ran)
        assert lasting or ran.code == 0, ran  # it is opened again, and looked up
        project.goes_on()
    assert unknown == lasting, "the one COMMIT of the state"
    proxy.close()


def test_an_edit_whose_commit_is_not_known_to_be_there_waits(tmp_path: Path) -> None:
    """The put of the state is done, and the server gone: the file follows what is committed."""
    server = FailingObjects()
    write(tmp_path)
    with (tmp_path / "mzplan.yaml").open("a") as settings:
        settings.write(f"state: {json.dumps(STATE)}\n")
    folder = tmp_path
    with server.failing():
        apply(folder)
    file, old = folder / "pipeline.yaml", (folder / "pipeline.yaml").read_bytes()
    for late, broker in ((True, "b"), (False, "c")):
        alter = ("alter", f"ALTER CONNECTION k SET BROKER '{broker}:9092'", "--auto-approve")
        faulty = FailingObjects(store=server.store, late=late, lasting=True, fails="put mzplan.state.json")
        ran = ended(folder, faulty.failing(), *alter)
        assert ran.code == 8 and Before.is_unknown(ran), ran
        assert file.read_bytes() == old and (folder / ".mzplan" / "alter.json").exists()
        with server.failing():
            held = store_of(folder).holder()
        assert held is not None
        unlocked(folder, server, ran, held.id)
        assert ended(folder, server.failing(), "apply", "--auto-approve").code == 0
        assert not (folder / ".mzplan" / "alter.json").exists()
        assert (file.read_bytes() != old) == late
        old = file.read_bytes()
