"""Stored files keep their format: mzplan reads the files of tests/cases/formats, and writes equal bytes.

tests/cases/formats/full    with optional fields
tests/cases/formats/bare    without any
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.features.state.migration import collect_records, read_records, write_records
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.operations.alter_journal import Journal
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import encode_lease, encode_state
from mzplan.store.leases import newest_epoch, raise_epoch
from mzplan.store.limits import read_limit, write_limit
from mzplan.store.proposals import Proposal
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.step_index import StepIndex

GOLDEN = Path(__file__).parents[2] / "cases" / "formats"


class Project:
    """A project's store, and its files elsewhere."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = Store(LocalBackend(folder / "state"), "shop")

    def proposal(self) -> Proposal:
        """Return the proposal. A store lists it as open only without its answer."""
        key = "proposals/00000000000000aa.answer.json"
        answer = self.store.backend.read(key)
        assert answer is not None
        self.store.backend.delete(key)
        (found,) = Store(self.store.backend, "shop").proposals.open("local")
        self.store.backend.write(key, answer.data)
        return found

    def copy_to(self, other: Project) -> None:
        """Read every file, and write its content to the other project."""
        store, copy = self.store, other.store
        state = store.read_state()
        outcome = store.read_outcome(state.lineage, max(state.serial, 1))
        status, lease = store.read_status("local"), store.leases.read("local")
        proposal = self.proposal()
        answer = store.proposals.read_answer(proposal)
        assert outcome and status and lease and answer
        copy.backend.write(STATE_KEY, encode_state(state))
        copy.write_outcome(outcome)
        copy.write_status(status)
        copy.backend.write("leases/local.json", encode_lease(lease))
        raise_epoch(copy.backend, newest_epoch(store.backend))
        copy.write_accepted("local", store.read_accepted("local"))
        copy.write_journal("local", store.read_journal("local"))
        if prepared := store.read_prepared("local"):
            copy.write_prepared("local", prepared)
        if past_runs := store.read_past_runs("local"):
            copy.write_past_runs("local", past_runs)
        copy.proposals.make(proposal.instance, proposal.descriptions)
        copy.proposals.answer(answer)
        write_limit(copy, state.serial, read_limit(store, state.serial))
        if (lock := store.holder()) is not None:
            copy.hold(lock)
        plan = decode_plan((self.folder / "plan.json").read_bytes())
        (other.folder / "plan.json").write_bytes(encode_plan(plan))
        steps = list(StepIndex(Checkpoint(str(self.folder))).backwards())
        StepIndex(Checkpoint(str(other.folder))).append(reversed(steps))

        name, third = "shop.runners", Project(other.folder / "third")
        write_records(third.store, read_records((self.folder / name).read_bytes(), name, state.lineage))
        (other.folder / name).write_bytes(collect_records(third.store, state.lineage) or b"")
        shutil.rmtree(third.folder)
        if (journal := self.folder / "alter.json").exists():
            (other.folder / journal.name).write_bytes(Journal.decode(journal.read_bytes()).encode())


def files_below(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return an empty project, in which times and ids are always the same."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)
    monkeypatch.setattr("secrets.token_hex", lambda _: "00000000000000aa")
    (tmp_path / "new").mkdir()
    return Project(tmp_path / "new")


@pytest.mark.parametrize("case", ["full", "bare"])
def test_stored_files_are_read_and_written_unchanged(project: Project, tmp_path: Path, case: str) -> None:
    stored = Project(tmp_path / case)
    shutil.copytree(GOLDEN / case, stored.folder)
    stored.copy_to(project)
    assert files_below(project.folder) == files_below(GOLDEN / case)


def test_an_error_that_is_not_unicode_is_stored(project: Project) -> None:
    shutil.copytree(GOLDEN / "full", project.folder, dirs_exist_ok=True)
    status, source = project.store.read_status("local"), Address("source", "orders")
    assert status is not None and status.observations[source].error == "no ? character"
    seen = replace(status.observations[source], error="no \ud800 character")
    project.store.write_status(replace(status, observations={**status.observations, source: seen}))
    assert files_below(project.folder) == files_below(GOLDEN / "full")


def test_an_excerpt_of_a_file_is_not_stored() -> None:
    assert "excerpt" not in encode(Diagnostic(code="MZ001", summary="x", excerpt="password: hunter2"))
