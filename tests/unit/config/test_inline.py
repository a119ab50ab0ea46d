"""Inlined descriptions and their digests: what counts, and what does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.resources import Configuration
from mzplan.schema.description import digest_of
from mzplan.schema.kinds import resource_kind
from tests.unit.small_projects import at, commit, kafka, postgres, project, shop, sink, source


def digest(configuration: Configuration, address: str) -> str:
    return commit(configuration).resources[at(address)].digest


BASE = shop()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"orders": source(start_offsets="latest")}, id="in place"),
        pytest.param({"orders": source(trigger={"interval": "1s"})}, id="a default written out"),
        pytest.param({"orders": source(columns="id LONG,  amount integer")}, id="another spelling"),
        pytest.param({"orders": source(lifecycle={"prevent_destroy": True})}, id="lifecycle"),
        pytest.param({"k": kafka(description="text")}, id="description of its connection"),
        pytest.param({"k": kafka(security={"ssl": {"verify_hostname": True}})}, id="default, deeper"),
        pytest.param({"pg": postgres(host="elsewhere")}, id="a connection that it does not use"),
        pytest.param({"orders_pg": sink(where="id > 1")}, id="what is downstream"),
    ],
)
def test_a_change_without_effect_keeps_the_digest(changed: dict[str, Any]) -> None:
    assert digest(shop(**changed), "source.orders") == digest(BASE, "source.orders")


def test_the_digest_ignores_names_but_neither_types_nor_the_instance() -> None:
    shops = [BASE, *(shop(k=kafka(options={"check.crcs": value})) for value in (1, True))]
    shops.append(shop(orders=source(instance="other")))
    assert len({digest(one, "source.orders") for one in shops}) == 4
    renamed = project(kafka("other"), source("sales", connection="other", topic="orders"))
    assert digest(renamed, "source.sales") == digest(BASE, "source.orders")


def test_columns_and_generation_of_a_source_but_not_how_it_reads_change_the_digest_of_its_sink() -> None:
    base = digest(BASE, "sink.orders_pg")
    assert digest(shop(orders=source(trigger={"interval": "2s"}, topic="t")), "sink.orders_pg") == base
    assert digest(shop(orders=source(columns="id BIGINT, amount INT, more INT")), "sink.orders_pg") != base
    resources = dict(commit(BASE).resources)
    orders = resources[at("source.orders")]
    assert digest_of(dataclasses.replace(orders, id="x", override="paused"), resources) == orders.digest
    again = resources[at("source.orders")] = dataclasses.replace(orders, generation=2)
    assert orders.digest != digest_of(again, resources)
    assert digest_of(resources[at("sink.orders_pg")], resources) != base


def test_a_whole_number_written_as_a_float_is_that_number() -> None:
    normalise = resource_kind("connection", "postgres").normalise
    assert repr(normalise({"port": 5433.0})) == "{'port': 5433}"
    assert normalise({"port": 5432.0}) == {}
