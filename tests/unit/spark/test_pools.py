"""Scheduler pools: no query starves because its name comes late in the alphabet."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.spark.pools import SchedulerPools, cores_of, pool_count


def queries(number: int) -> list[Address]:
    return [Address.parse(f"source.q{n}") for n in range(number)]


@pytest.mark.parametrize(("pools", "number"), [(1, 12), (2, 12), (2, 13), (8, 40), (8, 3)])
def test_there_are_no_more_pools_than_cores_and_queries_are_spread_evenly(pools: int, number: int) -> None:
    spread = SchedulerPools(lambda: pools)
    members = Counter(spread.of(query) for query in queries(number))
    assert len(members) == min(pools, number)
    assert max(members.values()) - min(members.values()) <= 1
    assert "default" not in members  # in there, Spark takes stage 100 before stage 99


def test_a_query_keeps_its_pool_until_it_is_stopped() -> None:
    spread = SchedulerPools(lambda: 3)
    one, two, three, four = queries(4)
    pools = [spread.of(query) for query in (one, two, three)]
    assert len(set(pools)) == 3 and [spread.of(query) for query in (one, two, three)] == pools
    spread.leave(two)
    spread.leave(two)
    assert spread.of(four) == pools[1]


def spark(master: str, parallelism: int = 2, settings: tuple[str, ...] = ()) -> Any:
    runtime = SimpleNamespace(availableProcessors=lambda: 6)
    conf = SimpleNamespace(contains=lambda name: name in settings)
    context = SimpleNamespace(master=master, defaultParallelism=parallelism, getConf=lambda: conf)
    java = SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime))
    return SimpleNamespace(sparkContext=context, _jvm=java)


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[1]", 1), ("local[4]", 4), ("local[4, 2]", 4), ("local[*]", 6)]
)
def test_the_cores_of_this_machine(master: str, cores: int) -> None:
    assert cores_of(spark(master, 99)) == pool_count(spark(master, 99)) == cores


@pytest.mark.parametrize(("parallelism", "pools"), [(2, 1), (3, 2), (16, 15)])
def test_a_cluster_has_one_pool_less_than_cores(parallelism: int, pools: int) -> None:
    assert pool_count(spark("spark://master:7077", parallelism)) == pools


def test_a_cluster_whose_cores_a_setting_hides_has_one_pool() -> None:
    assert pool_count(spark("yarn", 200, ("spark.default.parallelism",))) == 1
