"""Copies of another environment's collections: what they read, follow and sample, and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mzplan.schema.description import Description
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark_lab import Lab
from tests.stored_steps import StoredSource
from tests.support import eventually


def copy(lab: Lab, warehouse: Path | str, id_: str, **body: Any) -> Description:
    collection = {"warehouse": str(warehouse), "id": id_, "generation": 1}
    body = {"schema": "id BIGINT, name STRING", **body}
    return lab.source("environment", None, from_environment="prod", source="x", collection=collection, **body)


def holds(lab: Lab, source: Description, ids: list[int]) -> None:
    def has_rows() -> bool:
        report = lab.report(source)
        assert report.error is None, report.error
        return lab.ids(source) == ids

    eventually(f"{source.address} has {len(ids)} rows", has_rows, 180)


def test_a_copy_follows_a_collection_or_reads_it_as_of_a_step(lab: Lab, tmp_path: Path) -> None:
    prod = StoredSource(tmp_path / "prod")
    prod.run([{"id": n, "name": f"n{n}"} for n in range(20)])
    prod.run([{"id": n, "name": f"n{n}"} for n in range(20, 40)])
    follows, then, sampled = (
        copy(lab, tmp_path / "prod", "orders-id", **body) for body in ({}, {"as_of": 0}, {"sample": "50%"})
    )
    lab.start(follows, then, sampled)
    holds(lab, follows, [*range(40)])
    holds(lab, then, [*range(20)])
    eventually("the sample is read", lambda: lab.last_step(sampled) == 0)
    sample = lab.ids(sampled)
    assert 8 < len(sample) < 32
    prod.run([{"id": n, "name": f"n{n}"} for n in (*range(40), 40)])
    holds(lab, follows, sorted([*range(40), *range(40), 40]))
    eventually("equal rows are in the sample too", lambda: len(lab.ids(sampled)) >= 2 * len(sample))
    assert [n for n in lab.ids(sampled) if n < 40] == sorted([*sample, *sample])

    lab.finish(follows, then)
    prod.run([{"id": 41, "name": "n41"}])
    lab.start(follows, then)
    holds(lab, follows, sorted([*range(40), *range(42)]))
    assert lab.last_step(then) == 0 and lab.ids(then) == [*range(20)]


def test_a_sample_has_all_changes_of_a_key_or_none(lab: Lab) -> None:
    shop = CurrentLab(lab)
    shop.table("c", "id BIGINT, name STRING", "id", *(f"{n}, 'n{n}'" for n in range(40)))
    whole, sampled = (
        copy(lab, lab.context.warehouse, shop.inputs["c"].id, key=["id"], **body)
        for body in ({}, {"sample": "50%"})
    )
    lab.start(whole, sampled)
    holds(lab, whole, [*range(40)])
    eventually("the sample is read", lambda: lab.last_step(sampled) == 0)
    sample = lab.ids(sampled)
    assert 8 < len(sample) < 32
    shop.sql("UPDATE {c} SET name = 'new'")
    shop.sql("DELETE FROM {c} WHERE id % 2 = 0")
    odd = [*range(1, 40, 2)]
    holds(lab, whole, odd)
    holds(lab, sampled, [n for n in sample if n % 2])
    assert {row["name"] for row in (*lab.read(whole), *lab.read(sampled))} == {"new"}
