"""Fuzz over every file of the store, through the real command line: bytes cut and changed, and single JSON
values replaced with the checksum made right again. No traceback, no hang, an exit code of the contract, and
what was in the state is still there."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from tests.unit.cli_runs import apply, mzplan, run, write

Json = Any
DEEP: Json = json.loads("[" * 400 + "]" * 400)
ODD: list[Json] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        7,
        2**31,
        2**63,
        10**30,
        0.5,
        1e300,
        math.nan,
        -math.inf,
        "",
        "0",
        "x",
        " ",
    ),
    *(
        "../../../tmp/x",
        "a/b",
        "..",
        "x" * 5000,
        "\x1b[31m\u202e\u0000",
        "\ud800",
        "source.orders",
        "sink.none",
    ),
    *(
        "connection.k",
        "local",
        "nowhere",
        "dry",
        "running",
        "${env:X}",
        [],
        {},
        [[]],
        [1, "x"],
        {"a": {"b": []}},
    ),
    DEEP,
]
COMMANDS = [
    ("plan",),
    ("plan", "--explain", "--detailed-exitcode"),
    ("plan", "--target", "source.orders"),
    ("plan", "--replace", "source.orders"),
    ("apply", "--auto-approve", "--allow-replace", "--wait", "1s"),
    ("destroy", "--auto-approve", "--wait", "1s"),
    ("pause", "source.orders", "--wait", "1s"),
    ("restart", "sink.out", "--wait", "1s"),
    ("status",),
    ("drift",),
    ("show",),
    ("show", "source.orders"),
]
KEYS = (
    STATE_KEY,
    "status/local.json",
    "status/local.accepted.json",
    "leases/local.json",
    "journal/local.jsonl",
    "proposals/00000000000000aa.json",
    "proposals/00000000000000aa.answer.json",
    "lock",
    "history/00000001.json",
)


@dataclass
class World:
    """A project that was applied and then edited, and all files of its store as they should be."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    plan: bytes = field(default=b"", repr=False)

    def restore(self) -> None:
        shutil.rmtree(self.folder / "state")
        for key, data in self.files.items():
            path = self.folder / "state" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def state(self) -> bytes:
        return (self.folder / "state" / STATE_KEY).read_bytes()


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
        path = folder / "state" / key.replace("00000000000000aa", proposal.id)
        made.files[key] = path.read_bytes().replace(proposal.id.encode(), b"00000000000000aa")
    assert mzplan(folder, "plan", "--out", str(folder / "p.plan")).code == 0
    made.plan = (folder / "p.plan").read_bytes()
    return made


# --- what is done to a file


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


@st.composite
def edited(draw: st.DrawFn, document: Json) -> Json:
    """The document with one value replaced, removed or put under another key."""
    document = copy.deepcopy(document)
    path = draw(st.sampled_from(list(places(document))))
    odd = copy.deepcopy(draw(st.sampled_from(ODD)))
    if not path:
        return odd
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    match draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename"))):
        case "replace":
            holder[path[-1]] = odd
        case "remove":
            del holder[path[-1]]
        case _ if isinstance(holder, dict):
            name = draw(st.sampled_from([text for text in ODD if isinstance(text, str)]))
            holder[name] = holder.pop(path[-1])
    return document


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes cut, doubled or changed at one place."""
    at = draw(st.integers(0, len(data)))
    some = draw(
        st.binary(max_size=6) | st.sampled_from((b'"', b"{", b"}", b",", b"[" * 3000, b"\xff", b"\0"))
    )
    return draw(
        st.sampled_from((data[:at], data[at:], data[:at] + some + data[at:], data[:at] + some, data + data))
    )


def checked_state(document: Json) -> bytes:
    """A state file with a right checksum."""
    if isinstance(document, dict) and isinstance(document.get("checksum"), str):
        document["checksum"] = ""
        text = json.dumps(document, indent=2)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return text.replace('"checksum": ""', f'"checksum": "sha256:{digest}"', 1).encode()
    return json.dumps(document).encode()


def checked_plan(document: Json) -> bytes:
    """A plan file with a right checksum."""
    if isinstance(document, dict) and "plan" in document:
        text = json.dumps(document["plan"], sort_keys=True, separators=(",", ":"))
        document["checksum"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return json.dumps(document).encode()


# --- what must hold


def holds(world: World, key: str, data: bytes, arguments: tuple[str, ...], *, valid: bool) -> None:
    world.restore()
    path = world.folder / "state" / key
    path.write_bytes(data)
    before = world.state()
    ran = mzplan(world.folder, *arguments, "--json")
    ran.json()
    if ran.code in (1, 5, 6, 7, 64):
        assert world.state() == before, ran
    if ran.code == 0 and arguments[0] in ("apply", "pause", "restart", "destroy"):
        assert mzplan(world.folder, "show", "--json").code == 0, "what was committed can be read"
    if key == STATE_KEY and not valid and data != world.files[key]:
        told = arguments[0] == "drift" and "unmanaged-change" in ran.out  # to tell that is what drift is for
        assert ran.code == 1 or told, ran


fuzzed = settings(
    max_examples=int(os.environ.get("MZPLAN_FUZZ", "40")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=False,
    print_blob=True,
)


@pytest.mark.parametrize("key", KEYS)
@given(data=st.data())
@fuzzed
def test_damaged_bytes(world: World, key: str, data: st.DataObject) -> None:
    changed = data.draw(damaged(world.files[key]))
    command = data.draw(st.sampled_from(COMMANDS))
    holds(world, key, changed, command, valid=_means_the_same(changed, world.files[key]))


@pytest.mark.parametrize("key", KEYS)
@given(data=st.data())
@fuzzed
def test_edited_values(world: World, key: str, data: st.DataObject) -> None:
    document = data.draw(
        edited(json.loads(world.files[key].splitlines()[0] if "jsonl" in key else world.files[key]))
    )
    command = data.draw(st.sampled_from(COMMANDS))
    changed = (
        checked_state(document)
        if key in (STATE_KEY, "history/00000001.json")
        else json.dumps(document).encode()
    )
    holds(world, key, changed, command, valid=True)


@given(data=st.data())
@fuzzed
def test_plan_files(world: World, data: st.DataObject) -> None:
    world.restore()
    before = world.state()
    if data.draw(st.booleans()):
        changed = data.draw(damaged(world.plan))
    else:
        changed = checked_plan(data.draw(edited(json.loads(world.plan))))
    path = world.folder / "p.plan"
    path.write_bytes(changed)
    shown = run("-C", str(world.folder), "show", str(path), "--explain", "--json")
    shown.json()
    ran = mzplan(world.folder, "apply", str(path), "--allow-replace", "--json", "--wait", "1s")
    ran.json()
    if ran.code in (0, 8):
        assert mzplan(world.folder, "plan", "--json").code in (0, 1, 7)
        assert mzplan(world.folder, "show", "--json").code == 0, "what was committed can be read"
    else:
        assert world.state() == before


def _means_the_same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False
