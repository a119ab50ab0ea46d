"""What a new generation of a source takes over when rows are migrated: its slot, its steps, its upstream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from mzplan.connectors.adapter.config import endpoint_name
from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery, resolve
from mzplan.connectors.checks import check_description
from mzplan.connectors.postgres.source.slots import Names
from mzplan.connectors.releases import transfer_release
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import Predecessor
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint, MigratedRows
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import commit, offsets
from tests.unit.connectors.queries import described

BODY = {"tables": ["public.t"], "schema": "id BIGINT", "key": ["id"]}


def source(generation: int = 1, before: Predecessor | None = None, **body: Any) -> Description:
    given = {"id": "s-1", "generation": generation, "predecessor": before}
    return described("source.s", "postgres", {**BODY, **body}, **given)


def predecessor(generation: int, before: Predecessor | None = None) -> Predecessor:
    return Predecessor(generation=generation, body=BODY, predecessor=before)


def resolved(folder: Path, description: Description) -> ResolvedQuery:
    return resolve(description, Secrets(folder), str(folder), str(folder))


def begun(folder: Path, generation: int, origin: int | None) -> None:
    given: dict[str, Any] = {"body": BODY, "table": "t", "version": 1, "position": "{}", "done": True}
    migrated = MigratedRows(generation=generation - 1, origin=origin, **given)
    Checkpoint.of(str(folder), "s-1", generation).record_migrated_rows(migrated)


def test_slot_publication_and_endpoint_keep_the_name_of_the_first_generation(tmp_path: Path) -> None:
    first = resolved(tmp_path, source())
    assert Names.of(first).slot == Names.of(first).publication == "mzplan_s_1_g1"
    begun(tmp_path, 3, 1)
    third = resolved(tmp_path, source(3, predecessor(2, predecessor(1))))
    assert Names.of(third) == Names.of(first)
    assert endpoint_name(third) == endpoint_name(first) == "s-1.g1"
    begun(tmp_path, 4, None)  # nothing had been read
    fourth = resolved(tmp_path, source(4, predecessor(3)))
    assert Names.of(fourth).slot == "mzplan_s_1_g4"
    adopted = resolved(tmp_path, source(3, predecessor(2), slot="mine"))
    assert (Names.of(adopted).slot, Names.of(adopted).publication) == ("mine", "mzplan_s_1_g1")


def test_objects_on_the_server_belong_to_the_new_generation(tmp_path: Path) -> None:
    earlier, later = (Checkpoint.of(str(tmp_path), "s-1", number) for number in (1, 2))
    description = source(2, predecessor(1))
    transfer_release(earlier, later, description)
    assert later.leaves() is None  # nothing was made
    earlier.record_leaves(encode(source()))
    for _ in range(2):
        transfer_release(earlier, later, description)
        assert (earlier.leaves(), later.leaves()) == ({}, encode(description))


class Recording(SourceConnector):
    """A source's connector that records the checkpoint, the generation and the position of each question."""

    position = "INT"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str]] = []

    def source(self, _type: str) -> SourceConnector:
        return self

    def probe(self, query: ResolvedQuery) -> Probe:
        self.check_position(query, "")
        return Probe(upstream={"a": "b"})

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        assert query.checkpoint is not None
        folder = query.checkpoint.folder.rpartition("/")[2]
        self.asked.append((folder, query.description.generation, position))
        return None


def test_a_check_uses_the_generation_that_has_the_position(tmp_path: Path) -> None:
    spark = Path(Checkpoint.of(str(tmp_path), "s-1", 1).spark)
    offsets(spark, 0, {"step": 7})
    commit(spark, 0)
    third = source(3, predecessor(2, predecessor(1)))

    def asked(description: Description) -> list[tuple[str, int, str]]:
        seen: Any = Recording()
        place = str(tmp_path)
        found = check_description(description, Secrets(tmp_path), seen, directory=place, warehouse=place)
        assert found.diagnostics == ()
        return list(seen.asked)

    assert asked(third) == [("g1", 1, ""), ("g1", 1, '{"step": 7}')]
    begun(tmp_path, 3, 1)
    assert asked(third) == [("g3", 3, "")]
    assert asked(replace(third, predecessor=None)) == [("g3", 3, "")]


def test_expired_steps_of_migrated_rows_are_a_loss(tmp_path: Path) -> None:
    begun(tmp_path, 2, 1)
    former = Checkpoint.of(str(tmp_path), "s-1", 2)
    offsets(Path(former.spark), 0, {"step": 5})
    StepIndex(former).append([StepRecord(step=0, end={"step": 5}, rows=7)])
    expired: Any = Mock(steps=lambda: range(3, 9))  # the first three steps have expired
    expired.name.return_value, expired.new_endpoint.return_value = "expired", expired
    found = EndpointSource(expired).loss(resolved(tmp_path, source(3)), former)
    assert found is not None and (found.lost, found.read) == (3, 5)
