"""Fuzz of every file of the store through the command line, with damaged bytes.

No traceback, no hang, an exit code of the contract, and the state is still there.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Lease
from mzplan.schema.description import describe
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import encode_lease
from mzplan.store.journal import Dropped
from mzplan.store.proposals import Answer
from mzplan.store.store import Store
from tests.unit.cli_runs import apply, mzplan, write

COMMANDS = [
    line.split()
    for line in (
        "plan --explain --detailed-exitcode",
        "plan --target source.orders",
        "plan --replace source.orders",
        "apply --auto-approve --allow-replace --wait 1s",
        "destroy --auto-approve --wait 1s",
        "pause source.orders --wait 1s",
        "restart sink.out --wait 1s",
        "status",
        "drift",
        "show",
        "show source.orders",
    )
]
PROPOSAL = "00000000000000aa"
KEYS = (
    STATE_KEY,
    "status/local.json",
    "status/local.accepted.json",
    "leases/local.json",
    "journal/local.jsonl",
    f"proposals/{PROPOSAL}.json",
    f"proposals/{PROPOSAL}.answer.json",
    "lock",
    "history/00000001.json",
)


@dataclass
class World:
    """A project that was applied and then edited, and all files of its store as they should be."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict, repr=False)

    def restore(self) -> None:
        shutil.rmtree(self.folder / "state")
        for key, data in self.files.items():
            path = self.folder / "state" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = write(tmp_path_factory.mktemp("fuzz"))
    apply(folder)
    write(folder, broker="b")
    apply(folder)
    write(folder, broker="c")
    store = Store(LocalBackend(folder / "state"), "shop")
    state = store.read_state()
    orders, sink = state.resources[Address("source", "orders")], state.resources[Address("sink", "out")]
    descriptions = tuple(describe(resource, state.resources) for resource in (orders, sink))
    lease = Lease(
        instance="local", epoch=3, owner="x", host="h", pid=1, pid_started=1.0, heartbeat=1.0, ttl=15.0,
        released=True,
    )  # fmt: skip
    store.backend.write("leases/local.json", encode_lease(lease))
    store.write_journal("local", [Dropped.of(orders.address, orders.id, 7, 1e9)])
    proposal = store.proposals.make("local", descriptions)
    store.proposals.answer(Answer(id=proposal.id, diagnostics=(Diagnostic(code="MZ050", summary="x"),)))
    made = World(folder)
    for key in KEYS:
        path = folder / "state" / key.replace(PROPOSAL, proposal.id)
        made.files[key] = path.read_bytes().replace(proposal.id.encode(), PROPOSAL.encode())
    return made


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes cut, doubled or changed at one place."""
    at = draw(st.integers(0, len(data)))
    odd = st.sampled_from((b'"', b"{", b"}", b",", b"[" * 3000, b"\xff", b"\0"))
    some = draw(st.binary(max_size=6) | odd)
    return draw(
        st.sampled_from((data[:at], data[at:], data[:at] + some + data[at:], data[:at] + some, data + data))
    )


@given(data=st.data())
@settings(
    max_examples=int(os.environ.get("MZPLAN_FUZZ", "80")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
def test_a_damaged_file_is_an_error_that_changes_nothing(world: World, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(KEYS))
    whole = world.files[key]
    changed = data.draw(damaged(whole))
    command = data.draw(st.sampled_from(COMMANDS))
    world.restore()
    (world.folder / "state" / key).write_bytes(changed)
    state = world.folder / "state" / STATE_KEY
    before = state.read_bytes()
    ran = mzplan(world.folder, *command, "--json")
    ran.json()
    if ran.code in (1, 5, 6, 7, 64):
        assert state.read_bytes() == before, ran
    if ran.code == 0 and command[0] in ("apply", "pause", "restart", "destroy"):
        assert mzplan(world.folder, "show", "--json").code == 0, "the committed state can be read"
    if key == STATE_KEY and not same_json(changed, whole):
        drifted = command[0] == "drift" and "unmanaged-change" in ran.out
        assert ran.code == 1 or drifted, ran


def same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False
