"""What a source goes on by, on its upstream and beside its checkpoint, through carry-overs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mzplan.connectors.adapter.config import endpoint_name
from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery, resolve
from mzplan.connectors.checks import check_description
from mzplan.connectors.local.source import LocalFactory
from mzplan.connectors.postgres.source.slots import Names
from mzplan.connectors.releases import transfer_release
from mzplan.endpoints.steplog import StepLog
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import Predecessor
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint, MigratedRows
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord

BODY = {"tables": ["public.t"], "schema": "id BIGINT", "key": ["id"]}


def described(generation: int = 1, before: Predecessor | None = None, **body: Any) -> Description:
    return Description(
        address=Address("source", "s"),
        id="s-1",
        generation=generation,
        digest="",
        type="postgres",
        body={**BODY, **body},
        predecessor=before,
    )


def predecessor(generation: int, before: Predecessor | None = None) -> Predecessor:
    return Predecessor(generation=generation, body=BODY, predecessor=before)


def resolved(folder: Path, description: Description) -> ResolvedQuery:
    return resolve(description, Secrets(folder), str(folder), str(folder))


def begun(folder: Path, generation: int, origin: int | None) -> None:
    migrated = MigratedRows(
        generation=generation - 1, body=BODY, table="t", version=1, position="{}", origin=origin, done=True
    )
    Checkpoint.of(str(folder), "s-1", generation).record_migrated_rows(migrated)


def test_slot_publication_and_endpoint_keep_the_name_of_the_first(tmp_path: Path) -> None:
    first = resolved(tmp_path, described())
    assert Names.of(first).slot == Names.of(first).publication == "mzplan_s_1_g1"
    begun(tmp_path, 3, 1)
    third = resolved(tmp_path, described(3, predecessor(2, predecessor(1))))
    assert Names.of(third) == Names.of(first)
    assert endpoint_name(third) == endpoint_name(first) == "s-1.g1"
    begun(tmp_path, 4, None)  # nothing had been read
    fourth = resolved(tmp_path, described(4, predecessor(3)))
    assert Names.of(fourth).slot == "mzplan_s_1_g4"
    adopted = resolved(tmp_path, described(3, predecessor(2), slot="mine"))
    assert (Names.of(adopted).slot, Names.of(adopted).publication) == ("mine", "mzplan_s_1_g1")


def test_a_generation_that_never_ran_is_read_back(tmp_path: Path) -> None:
    checkpoint, migrated = Checkpoint.of(str(tmp_path), "s-1", 2), MigratedRows(generation=1, body=BODY)
    checkpoint.record_migrated_rows(migrated)
    assert checkpoint.migrated_rows() == migrated


def test_what_was_made_belongs_to_the_later_one_again_and_again(tmp_path: Path) -> None:
    earlier, later = (Checkpoint.of(str(tmp_path), "s-1", number) for number in (1, 2))
    description = described(2, predecessor(1))
    transfer_release(earlier, later, description)
    assert later.leaves() is None  # nothing was made
    earlier.record_leaves(encode(described()))
    for _ in range(2):
        transfer_release(earlier, later, description)
        assert (earlier.leaves(), later.leaves()) == ({}, encode(description))


def test_steps_of_an_endpoint_are_taken_along(tmp_path: Path) -> None:
    earlier, later = (Checkpoint.of(str(tmp_path), "s-1", number) for number in (1, 2))
    log = StepLog(earlier.steps)
    for step in range(5):
        log.append(step, {"until": step})
    log.expire(3)
    for _ in range(2):
        EndpointSource(LocalFactory()).migrate_checkpoint(earlier, later)
        copy = StepLog(later.steps)
        assert copy.steps() == range(3, 5) and copy.note(4) == {"until": 4}
    copy.append(5, {"until": 5})
    assert log.steps() == range(3, 5)


class _Seen(SourceConnector):
    """Records by which checkpoint it is asked."""

    position = "INT"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []

    def probe(self, query: ResolvedQuery) -> Probe:
        self._note(query, "")
        return Probe(upstream={"a": "b"})

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        self._note(query, position)
        return None

    def _note(self, query: ResolvedQuery, position: str) -> None:
        assert query.checkpoint is not None
        folder = query.checkpoint.folder.rpartition("/")[2]
        self.asked.append((folder, query.description.generation, position))


class _One:
    def __init__(self, connector: SourceConnector):
        self.connector = connector

    def source(self, _type: str) -> SourceConnector:
        return self.connector


def test_a_check_asks_by_the_generation_whose_position_it_is_to_have(tmp_path: Path) -> None:
    spark = tmp_path / "checkpoints" / "s-1" / "g1" / "spark"
    for folder, lines in (("offsets", 'v1\n{}\n{"step":7}'), ("commits", "v1\n{}")):
        (spark / folder).mkdir(parents=True)
        (spark / folder / "0").write_text(lines)
    third = described(3, predecessor(2, predecessor(1)))

    def asked(description: Description) -> list[tuple[str, int, str]]:
        seen = _Seen()
        found = check_description(
            description,
            Secrets(tmp_path),
            _One(seen),
            directory=str(tmp_path),
            warehouse=str(tmp_path),  # type: ignore[arg-type]
        )
        assert found.diagnostics == ()
        return seen.asked

    assert asked(third) == [("g1", 1, ""), ("g1", 1, '{"step":7}')]
    begun(tmp_path, 3, 1)
    assert asked(third) == [("g3", 3, "")]
    assert asked(replace(third, predecessor=None)) == [("g3", 3, "")]


class _Expired:
    """An endpoint, and what makes it, of which the first three steps have expired."""

    def name(self) -> str:
        return "expired"

    def new_endpoint(self, _name: str, _config: Any) -> _Expired:
        return self

    def steps(self) -> range:
        return range(3, 9)


def test_what_expires_of_steps_that_were_carried_over_is_lost(tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoints" / "s-1" / "g2" / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"step":5}')
    begun(tmp_path, 2, 1)
    former = Checkpoint.of(str(tmp_path), "s-1", 2)
    StepIndex(former).append([StepRecord(step=0, end={"step": 5}, rows=7)])
    found = EndpointSource(_Expired()).loss(resolved(tmp_path, described(3)), former)  # type: ignore[arg-type]
    assert found is not None and (found.lost, found.read) == (3, 5)
