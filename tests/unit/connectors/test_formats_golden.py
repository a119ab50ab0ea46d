"""What lies on disk stays what it is: one file of each kind that mzplan stores, byte for byte.

tests/cases/formats/full    every optional field is used
tests/cases/formats/bare    none is
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mzplan.features.state.migration import collect_records, read_records, write_records
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, SourceRange
from mzplan.model.history import CommitOutcome, CommitRecord, GitRevision, QueryOutcome
from mzplan.model.observed import Lease, Observation, Status, Verdict
from mzplan.model.plan import Change, DriftItem, FieldChange, Pending, Plan
from mzplan.model.resources import Instance
from mzplan.model.state import Canary, Forgotten, ResourceState, State
from mzplan.operations.alter_journal import Journal
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.store.backends.backend import LockInfo
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.epochs import newest_epoch, raise_epoch
from mzplan.store.formats import encode_lease, encode_state
from mzplan.store.journal import Dropped, Prepared
from mzplan.store.limits import read_limit, write_limit
from mzplan.store.proposals import Answer
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord

GOLDEN = Path(__file__).parents[2] / "cases" / "formats"
NOW = 1_700_000_000.25
TIME = "2026-01-01T00:00:00+00:00"
KAFKA, BASTION = Address("connection", "kafka"), Address("connection", "bastion")
ORDERS, OLD, OUT = Address("source", "orders"), Address("source", "old"), Address("sink", "out")
DIGEST = "1:" + "0f" * 32
ODD = 'ünï \u202e "x" \n €'
Made = dict[str, bytes]
Filled = Callable[[Store, Path], None]


# --- every optional field


def full_resources() -> dict[Address, ResourceState]:
    found = (
        ResourceState(address=BASTION, id="b0", type="ssh-tunnel", body={"host": "h", "user": "u"}),
        ResourceState(
            address=KAFKA,
            id="k0",
            type="kafka",
            body={"brokers": ["b:9092"], "security": {"password": "${env:P}"}},
            references={"tunnel": BASTION},
            dependencies=(BASTION,),
        ),
        ResourceState(
            address=ORDERS,
            id="o0",
            type="kafka",
            body={"connection": "kafka", "description": ODD, "max": 1.5, "paused": False, "x": None},
            references={"connection": KAFKA},
            dependencies=(KAFKA,),
            generation=3,
            digest=DIGEST,
            override="paused",
            restart_token=4,
        ),
        ResourceState(
            address=OUT,
            id="t0",
            type="console",
            body={"from": "orders", "instance": "big", "lifecycle": {"prevent_destroy": True}},
            references={"from": ORDERS},
            dependencies=(ORDERS,),
            digest=DIGEST,
            override="resumed",
        ),
    )
    return {resource.address: resource for resource in found}


def full_state() -> State:
    return State(
        project="shop",
        lineage="1f-ab",
        serial=12,
        warehouse="s3a://bucket/wärehouse",
        instances={"local": Instance(name="local", type="dry"), "big": Instance(name="big", type="cluster")},
        resources=full_resources(),
        forgotten={
            "z9": Forgotten(Address("source", "gone"), 2),
            "a1": Forgotten(Address("sink", "gone"), 1),
        },
        canaries=(Canary(address=ORDERS, wait=60.0, holds=(OUT, OLD), serial=12),),
        commit=CommitRecord(
            time=TIME,
            command="apply",
            user="ü",
            host="h",
            actor="ann",
            ci="github",
            message="why €",
            git=GitRevision(commit="0f" * 20, clean=False, subject="s"),
            digest="sha256:00",
            summary={"restart": 2, "create": 1},
        ),
    )


def full_outcome() -> CommitOutcome:
    return CommitOutcome(
        lineage="1f-ab",
        serial=12,
        time=TIME,
        status="failed",
        seconds=1.5,
        converged=3,
        open={
            OUT: QueryOutcome(status="failed", reason="why", code="MZ050"),
            ORDERS: QueryOutcome(status="pending"),
        },
    )


def full_status() -> Status:
    seen = Observation(
        address=ORDERS,
        generation=3,
        digest=DIGEST,
        wanted_digest="1:" + "1" * 64,
        wanted_generation=4,
        condition="failed",
        query_id="q",
        run_id="r",
        step=7,
        input_rows_per_second=0.5,
        processed_rows_per_second=1e6,
        lag=8,
        left_out=9,
        backlog={"retained_bytes": 10, "lag_bytes": 11},
        warning=ODD,
        quiet_since=NOW,
        error="no \ud800 character",
        error_code="MZ050",
        failures=2,
        upstream={"topic": "orders", "cluster": "c", "partitions": 3},
        held="canary source.old",
        lag_unit="rows",
        total_rows=12,
        last_rows=4,
        last_batch_at=NOW,
        last_steps=((7, 1_700_000_000, 4), (6, 1_699_999_999, None), (5, None, 0)),
        resumed={"step": 6, "position": {"orders": {"0": 17}}},
        run_rows=5,
        retry_at=NOW,
        at_fault=KAFKA,
        fault="it does not answer.",
    )
    rates = Observation(
        address=OUT,
        generation=1,
        digest="",
        wanted_digest="",
        wanted_generation=1,
        condition="running",
        input_rows_per_second=float("nan"),
        processed_rows_per_second=float("inf"),
    )
    return Status(
        instance="local",
        epoch=5,
        heartbeat=NOW,
        serial=12,
        observations={OUT: rates, ORDERS: seen},
        secrets={"${env:P}": "1:aa", "${file:/p}": "1:bb"},
        canaries={
            ORDERS: Verdict(serial=12, passed=False, condition="rejected", reason=ODD, code="MZ050"),
            OLD: Verdict(serial=11, passed=True),
        },
        foreign=("a query", ODD),
    )


def full_descriptions() -> tuple[Description, ...]:
    bastion = InlinedConnection(address=BASTION, type="ssh-tunnel", body={"host": "h"})
    kafka = InlinedConnection(
        address=KAFKA, type="kafka", body={"brokers": ["b:9092"]}, connections={"tunnel": bastion}
    )
    source = Description(
        address=ORDERS,
        id="o0",
        generation=3,
        digest=DIGEST,
        type="kafka",
        body={"description": ODD},
        connections={"connection": kafka, "a": bastion},
    )
    sink = Description(
        address=OUT,
        id="t0",
        generation=1,
        digest=DIGEST,
        type="console",
        body={},
        reads={
            "orders": CollectionRead(address=ORDERS, id="o0", generation=3, type="kafka", body={"max": 1.5})
        },
    )
    return source, sink


FULL_DIAGNOSTICS = (
    Diagnostic(
        severity="warning",
        code="MZ050",
        summary=ODD,
        detail="why",
        hint="do this",
        range=SourceRange(path="a.yaml", line=1, column=2, end_line=3, end_column=4),
        address=ORDERS,
        excerpt="never stored",
        exit_code=ExitCode.STALE,
    ),
    Diagnostic(code="MZ001", summary="x"),
)
FULL_STEPS = (
    StepRecord(
        step=0,
        start={"orders": {"0": 1}},
        end=[1, "x"],
        rows=2,
        bytes=3,
        time=NOW,
        version=4,
        digest="00ff00ff00ff00ff",
        digest_from="stream",
        sources=(0, 5),
    ),
    StepRecord(step=1, end="e", rows=0, total=5, digest="0" * 16, digest_from="collection"),
)


def full_plan() -> Plan:
    resources = full_resources()
    moved = ResourceState(**{**_fields(resources[ORDERS]), "address": OLD})
    return Plan(
        project="shop",
        lineage="1f-ab",
        serial=12,
        warehouse=ODD,
        variables={"z": [1, {"b": 2, "a": None}], "a": "x"},
        instances={"local": Instance(name="local", type="dry"), "big": Instance(name="big", type="embedded")},
        instances_changed=True,
        changes=(
            Change(
                address=ORDERS,
                action="move",
                effect="restart",
                fields=(
                    FieldChange(
                        path="b[0]", before=1, after={"y": 1, "x": [2]}, sensitive=False, effect="none"
                    ),
                    FieldChange(path="p", before=None, after=None, sensitive=True, effect="in-place"),
                ),
                reason=ODD,
                triggered_by=(KAFKA, BASTION),
                ways={KAFKA: (KAFKA,), BASTION: (BASTION, KAFKA)},
                before=moved,
                after=resources[ORDERS],
            ),
            Change(
                address=OUT,
                action="create",
                effect="replace",
                reason="new",
                after=ResourceState(**{**_fields(resources[OUT]), "id": "", "override": None}),
            ),
            Change(address=KAFKA, action="delete", effect="none", reason="gone", before=resources[KAFKA]),
        ),
        downstream=(OUT, ORDERS),
        feeds=((KAFKA, ORDERS), (ORDERS, OUT)),
        unaffected=7,
        pending=(Pending(address=OUT, condition="failed", reason=ODD),),
        drift=(DriftItem(address="source.orders", kind="orphaned-checkpoint", detail=ODD),),
        diagnostics=FULL_DIAGNOSTICS,
        canaries=(Canary(address=ORDERS, wait=1.5, holds=(OUT,)),),
        resuming=(OLD,),
    )


def _fields(resource: ResourceState) -> dict[str, Any]:
    return {name: getattr(resource, name) for name in resource.__slots__}


LEASE = Lease(
    instance="local",
    epoch=5,
    owner="o",
    host="h",
    pid=77,
    pid_started=NOW,
    heartbeat=NOW,
    ttl=15.0,
    released=True,
    pid_space="boot:4026531836",
)
LOCK = LockInfo(id="i", command="apply", user="ü", host="h", pid=77, time="2026-01-01T00:00:00+00:00")
DROPPED = (
    Dropped(id="z", generation=2, kind="sink", name="out", dropped_at=NOW),
    Dropped(id="a", generation=1, kind="source", name="orders", dropped_at=1e9),
)
JOURNAL = Journal(
    statement=f"ALTER … {ODD}",
    path="p/ä.yaml",
    before="0" * 64,
    after=ODD,
    after_digest=hashlib.sha256(ODD.encode()).hexdigest(),
    serial=3,
    digest="1" * 64,
)


def fill(store: Store, folder: Path) -> None:
    """A store with one file of each kind, and beside it what lies elsewhere."""
    state = full_state()
    store.backend.write(STATE_KEY, encode_state(state))
    store.write_outcome(full_outcome())
    store.write_status(full_status())
    store.backend.write("leases/local.json", encode_lease(LEASE))
    raise_epoch(store.backend, 6)
    store.write_accepted("local", {d.address: d for d in full_descriptions()})
    store.write_journal("local", DROPPED)
    store.write_prepared(
        "local", (Prepared(id="t0", from_id="o0", step=7), Prepared(id="a", from_id="", step=0))
    )
    store.write_past_runs("local", {("z", 2), ("a", 10), ("a", 9)})
    store.proposals.make("local", full_descriptions())
    store.proposals.answer(
        Answer(
            id="00000000000000aa", diagnostics=FULL_DIAGNOSTICS, upstreams={ORDERS: {"topic": "t", "n": 1}}
        )
    )
    write_limit(store, 12, 3)
    store.hold(LOCK)
    (folder / "plan.json").write_bytes(encode_plan(full_plan()))
    (folder / "alter.json").write_bytes(JOURNAL.encode())
    (folder / "shop.runners").write_bytes(collect_records(store, state.lineage) or b"")
    StepIndex(Checkpoint(str(folder))).append(FULL_STEPS)


# --- none


def fill_bare(store: Store, folder: Path) -> None:
    state = State(project="shop", lineage="x")
    store.backend.write(STATE_KEY, encode_state(state))
    store.write_outcome(CommitOutcome(lineage="x", serial=1, time=TIME, status="committed"))
    store.write_status(Status(instance="local", epoch=0, heartbeat=0.0, serial=-1))
    lease = Lease(
        instance="local", epoch=1, owner="", host="", pid=1, pid_started=0.0, heartbeat=0.0, ttl=1.0
    )
    store.backend.write("leases/local.json", encode_lease(lease))
    raise_epoch(store.backend, 0)
    store.write_accepted("local", {})
    store.write_journal("local", ())
    store.proposals.make("local", ())
    store.proposals.answer(Answer(id="00000000000000aa"))
    plan = Plan(project="shop", lineage="", serial=0, warehouse="")
    (folder / "plan.json").write_bytes(encode_plan(plan))
    (folder / "shop.runners").write_bytes(collect_records(store, state.lineage) or b"")
    StepIndex(Checkpoint(str(folder))).append((StepRecord(step=0),))


# --- what must hold


def copied(store: Store, folder: Path, other: Store, beside: Path) -> None:
    """Everything is read, and what was read is written elsewhere."""
    state = store.read_state()
    other.backend.write(STATE_KEY, encode_state(state))
    outcome = store.read_outcome(state.lineage, max(state.serial, 1))
    assert outcome is not None
    other.write_outcome(outcome)
    status, lease = store.read_status("local"), store.leases.read("local")
    assert status is not None and lease is not None
    other.write_status(status)
    other.backend.write("leases/local.json", encode_lease(lease))
    raise_epoch(other.backend, newest_epoch(store.backend))
    other.write_accepted("local", store.read_accepted("local"))
    other.write_journal("local", store.read_journal("local"))
    if prepared := store.read_prepared("local"):
        other.write_prepared("local", prepared)
    if past := store.read_past_runs("local"):
        other.write_past_runs("local", past)
    (proposal,) = Store(store.backend, "shop").proposals.open("local") or _answered(store)
    other.proposals.make(proposal.instance, proposal.descriptions)
    answer = store.proposals.read_answer(proposal)
    assert answer is not None
    other.proposals.answer(answer)
    write_limit(other, state.serial, read_limit(store, state.serial))
    if (holder := store.holder()) is not None:
        other.hold(holder)
    (beside / "plan.json").write_bytes(encode_plan(decode_plan((folder / "plan.json").read_bytes())))
    if (folder / "alter.json").exists():
        (beside / "alter.json").write_bytes(Journal.decode((folder / "alter.json").read_bytes()).encode())
    taken = read_records((folder / "shop.runners").read_bytes(), "shop.runners", state.lineage)
    third = Store(LocalBackend(beside / "third"), "shop")
    write_records(third, taken)
    (beside / "shop.runners").write_bytes(collect_records(third, state.lineage) or b"")
    shutil.rmtree(beside / "third")
    steps = list(StepIndex(Checkpoint(str(folder))).backwards())
    StepIndex(Checkpoint(str(beside))).append(reversed(steps))


def _answered(store: Store) -> list[Any]:
    """The proposal, which is open only without its answer."""
    key = "proposals/00000000000000aa.answer.json"
    blob = store.backend.read(key)
    assert blob is not None
    store.backend.delete(key)
    found = store.proposals.open("local")
    store.backend.write(key, blob.data)
    return found


def files_below(folder: Path) -> Made:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if path.name[0] != "."}


@pytest.fixture(autouse=True)
def always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr("secrets.token_hex", lambda _: "00000000000000aa")


def store_in(folder: Path) -> Store:
    return Store(LocalBackend(folder / "state"), "shop")


@pytest.mark.parametrize(("case", "filled"), [("full", fill), ("bare", fill_bare)])
def test_what_is_written_is_what_was_written_before(tmp_path: Path, case: str, filled: Filled) -> None:
    filled(store_in(tmp_path), tmp_path)
    assert files_below(tmp_path) == files_below(GOLDEN / case)


@pytest.mark.parametrize("case", ["full", "bare"])
def test_what_is_read_and_written_again_is_the_same(tmp_path: Path, case: str) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copytree(GOLDEN / case, one)
    other.mkdir()
    copied(store_in(one), one, store_in(other), other)
    assert files_below(other) == files_below(GOLDEN / case)


def test_what_is_read_has_every_field(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "full", tmp_path, dirs_exist_ok=True)
    store = store_in(tmp_path)
    assert store.read_state() == full_state()
    status, wanted = store.read_status("local"), full_status()
    assert status is not None
    assert (status.secrets, status.canaries, status.foreign) == (
        wanted.secrets,
        wanted.canaries,
        wanted.foreign,
    )
    assert store.leases.read("local") == LEASE
    assert store.read_accepted("local") == {d.address: d for d in full_descriptions()}
    assert store.read_journal("local") == sorted(DROPPED)
    assert store.holder() == LOCK
    assert Journal.decode((tmp_path / "alter.json").read_bytes()) == JOURNAL
    assert decode_plan((tmp_path / "plan.json").read_bytes()).changes == full_plan().changes
    assert tuple(StepIndex(Checkpoint(str(tmp_path))).backwards()) == FULL_STEPS[::-1]
