"""What must hold however a command ended: what it says is true, nothing is half, and the next one works.

The campaigns are small here, with fixed seeds. `MZPLAN_CAMPAIGN=10` makes them ten times as large.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from mzplan.operations.alter_journal import editing
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.store import Store
from tests.unit.cli_runs import Ran, mzplan, write

SIZE = int(os.environ.get("MZPLAN_CAMPAIGN", "1"))


@dataclass
class Before:
    """A project before a command: what the command may have changed when it has ended, and what never."""

    folder: Path
    store: Store
    serial: int = field(init=False)
    state: bytes | None = field(init=False, repr=False)
    history: dict[str, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.serial, self.state = self.store.read_state().serial, self._state()
        self.history = self._history()

    @property
    def is_committed(self) -> bool:
        return self._state() != self.state

    def holds(self, ran: Ran) -> None:
        """After a command with --json that was to commit: its answer is true, and the store is as it says."""
        self._is_answered(ran)
        assert self.store.read_state().serial == self.serial + self.is_committed, ran
        if self.is_unknown(ran):
            assert ran.code == 8 and "othing was changed" not in ran.out + ran.err, ran
        elif self.is_committed:
            assert ran.code in (0, 8) or (ran.code == 130 and "committed" in ran.out), ran
            assert "othing was changed" not in ran.out + ran.err, ran
            assert "ommitted" in ran.out + ran.err or ran.json()["serial"] == self.store.read_state().serial
        else:
            assert ran.code not in (0, 8), ran
        self.stands()

    @staticmethod
    def is_unknown(ran: Ran) -> bool:
        """It says that it can't know whether it has committed."""
        return any(one["code"] == "MZ175" for one in ran.json().get("diagnostics", []))

    def stands(self) -> None:
        """The state loads, the history is what it was, and nobody holds a lock."""
        self.store.read_state()
        history = self._history()
        assert {key: history.get(key) for key in self.history} == self.history
        with self.store.lock("test", 0.0), editing(str(self.folder), wait=0.0):
            pass

    def goes_on(self) -> None:
        """The next commands work, and each former serial is in the history."""
        goes_on(self.folder)
        last = self.store.read_state().serial  # a crash may have kept this one already
        assert self.store.serials()[: last - 1] == list(range(1, last))

    def _is_answered(self, ran: Ran) -> None:
        document = ran.json()
        if ran.code != 0:
            if ran.code == 130 and all(
                one.get("status") == "applied" for one in document.get("changes", [{}])
            ):
                return  # it came after the answer
            found = document.get("diagnostics", [])
            outcomes = document.get("outcomes", [])
            is_pending = document.get("pending") or any(o.get("status") != "applied" for o in outcomes)
            assert found or is_pending, ran
            assert all(one["code"].startswith("MZ") and one["summary"] for one in found), ran

    def _state(self) -> bytes | None:
        blob = self.store.backend.read(STATE_KEY)
        return blob.data if blob else None

    def _history(self) -> dict[str, bytes]:
        backend = self.store.backend
        blobs = {key: backend.read(key) for key in backend.list("history/")}
        return {key: blob.data for key, blob in blobs.items() if blob is not None}


def checkout(folder: Path, state: Mapping[str, Any]) -> Path:
    """A project whose broker is a variable, by default `a`, with this place for its state."""
    write(folder, broker="${var.broker}")
    with (folder / "mzplan.yaml").open("a") as file:
        file.write(f"variables: {{broker: {{default: a}}}}\nstate: {json.dumps(state)}\n")
    return folder


def fresh_copy(origin: Path, folder: Path) -> Path:
    """The project as it was prepared, in the place of what the last case has left."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(origin, folder)
    return folder


def ended(folder: Path, failing: AbstractContextManager[None], *arguments: str) -> Ran:
    """Run a command while its disk or its server fails. Its leases are those of a process that has ended."""
    with mock.patch("mzplan.store.leases.started_at", lambda pid: 1.0), failing:
        return mzplan(folder, *arguments, "--json")


def goes_on(folder: Path) -> None:
    """What comes next plans and applies, as if nothing had been."""
    for arguments in (("plan",), ("apply", "--auto-approve", "--allow-replace"), ("show",)):
        ran = mzplan(folder, *arguments, "--json")
        assert ran.code == 0, (arguments, ran)
