"""The commands of a team on each backend: two checkouts, one state, moved from one backend to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import stores
from tests.contract.stores import ObjectServer
from tests.unit.cli_runs import apply, mzplan, write


@pytest.fixture
def object_server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.start()
    yield server
    server.stop()


def checkout(folder: Path, state: dict[str, Any]) -> Path:
    """A checkout of the project, with the state kept where `state` says."""
    write(folder)
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + f"state: {json.dumps(state)}\n")
    return folder


def settings_of(case: stores.Case) -> dict[str, Any]:
    """What mzplan.yaml would say of this backend."""
    return dict(case.make.args[1])  # type: ignore[attr-defined]


def test_two_checkouts_share_a_state_that_moves_twice(
    postgres: Any, database: Callable[..., str], object_server: ObjectServer, tmp_path: Path
) -> None:
    folders = {}
    for name in ("local", "postgres", "objects"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
    cases = {
        "local": {"backend": "local", "path": "state"},
        "postgres": settings_of(stores.postgres(folders["postgres"], postgres, database("team"))),
        "objects": settings_of(stores.object_store(folders["objects"], object_server, "team")),
    }
    pulled = b""
    for number, (name, state) in enumerate(cases.items()):
        folder = checkout(folders[name], state)
        if number == 0:
            apply(folder)
        else:
            copy = tmp_path / "state.json"
            copy.write_bytes(pulled)
            assert mzplan(folder, "state", "pull").code == 1  # nothing there yet
            assert mzplan(folder, "state", "push", str(copy)).code == 0
        serial = mzplan(folder, "state", "list", "--json").json()["serial"]
        assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
        assert mzplan(folder, "pause", "sink.few", "--json").json()["serial"] == serial + 1
        assert mzplan(folder, "drift", "--detailed-exitcode").code == 0

        id_ = mzplan(folder, "state", "lock", "--json").json()["lock"]["id"]
        assert mzplan(folder, "restart", "sink.out").code == 6
        assert mzplan(folder, "state", "unlock", id_).code == 0
        ran = mzplan(folder, "state", "rollback", "--auto-approve", "--json")
        assert ran.code == 0 and ran.json()["serial"] == serial + 2
        pulled = mzplan(folder, "state", "pull").out.encode()
        assert b"a-secret-key" not in pulled and b"pw-state" not in pulled
    assert json.loads(pulled)["serial"] == 7
