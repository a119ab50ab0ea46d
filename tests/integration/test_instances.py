"""Queries that move between two embedded runners, and to one that nobody starts but its operator. Many
queries that always have work, on one core: each gets its turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.servers import KafkaBroker, PostgresServer
from tests.faults.doomed import Doomed
from tests.integration.orders_shop import OrdersShop
from tests.support import Make, Project, eventually, kafka_connection, orders_sink, orders_source

INSTANCES = "instances: {one: {type: embedded}, two: {type: embedded}, far: {type: cluster}}\n"


class Moving(Doomed):
    """A source and an appending sink, each on the instance that the test says."""

    def __init__(self, project: Project, shop: OrdersShop):
        super().__init__(project)
        settings = project.folder / "mzplan.yaml"
        settings.write_text(settings.read_text() + INSTANCES)
        self.shop, self.topic, self.sent = shop, shop.topic("moving"), 0
        shop.create_tables("o")

    def apply(self, source: str, sink: str) -> Any:
        """Put the two on these instances."""
        self.shop.declare(
            "moving",
            kafka_connection("k", self.shop.kafka.bootstrap) + self.shop.connection("p"),
            orders_source("o", "k", self.topic) + f"    instance: {source}\n",
            orders_sink("out", "o", "p", "o", more=f", instance: {sink}"),
        )
        return self.project.apply("--wait", "200s")

    def flow(self) -> None:
        """More rows, and each of all is there once."""
        self.shop.produce(self.topic, self.sent, self.sent + 10)
        self.sent += 10
        self.shop.arrived(self.sent, "o")

    def epoch(self) -> int:
        """Of the runner that has written to the table last."""
        ((epoch,),) = self.shop.rows("SELECT epoch FROM mzplan.writers")
        return int(epoch)

    def shown(self, instance: str) -> set[str]:
        status = json.loads((self.project.folder / "state" / "status" / f"{instance}.json").read_text())
        return set(status["observations"])

    def all_ended(self) -> bool:
        leases = (self.project.folder / "state" / "leases").glob("[a-z]*.json")
        return all(json.loads(lease.read_text())["released"] for lease in leases)


@pytest.mark.nightly
def test_queries_move_between_embedded_runners_and_to_a_cluster_instance(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    project = Project(tmp_path / "moving", "moving", {"TEST_PG_PASSWORD": postgres.password})
    moving = Moving(project, OrdersShop(project, kafka, postgres, topic, database()))
    try:
        moving.apply("one", "one")
        moving.flow()
        before, epoch = project.queries(), moving.epoch()
        moved = moving.apply("one", "two")
        assert [(c["address"], c["effect"]) for c in moved["changes"]] == [("sink.out", "restart")]
        moving.flow()
        after = project.queries()
        assert after["source.o"]["run_id"] == before["source.o"]["run_id"]
        assert after["sink.out"]["id"] == before["sink.out"]["id"]
        assert (moving.shown("one"), moving.shown("two")) == ({"source.o"}, {"sink.out"})
        because = after["sink.out"]["started_because"]
        assert (because["cause"], because["detail"]) == ("hand-over", "came from instance one")
        stopped = project.json("events", "sink.out", "--kind", "stopped")["events"]
        assert [e["cause"]["cause"] for e in stopped] == ["hand-over"]
        assert moving.epoch() > epoch

        far = moving.runner(instance="far")
        lease = project.folder / "state" / "leases" / "far.json"
        eventually("the runner leads", lease.exists, 120)  # `apply` waits 10 s for it
        moving.apply("far", "far")
        moving.flow()
        assert moving.shown("far") == {"source.o", "sink.out"}
        assert not moving.shown("one") and not moving.shown("two")
        moving.stop(far)
    finally:
        moving.close()
    eventually("all runners have ended", moving.all_ended)


QUERIES, STEPS = 12, 6
FILES = 200  # more than a query reads in the test


@pytest.mark.nightly
def test_no_query_starves_on_one_core(tmp_path: Path) -> None:
    """Spark gives a free core to the first of equal pools by name: five of twelve made no step in minutes."""
    master = {"PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"}
    project = Project(tmp_path / "p", "shared", master)
    names = [f"q{n:02}" for n in range(QUERIES)]
    for name in names:
        folder = project.folder / "in" / name
        folder.mkdir(parents=True)
        for file in range(FILES):
            (folder / f"{file}.json").write_text('{"id": 1}')
    project.write(
        "shared",
        "connections: {here: {type: files, path: .}}\n"
        "sources:\n"
        "  each:\n"
        f"    for_each: [{', '.join(names)}]\n"
        '    name: "${each.key}"\n'
        "    connection: here\n"
        '    path: "in/${each.key}"\n'
        '    format: {type: json, schema: "id BIGINT"}\n'
        "    max_files_per_trigger: 1\n"
        "    trigger: {interval: 100ms}\n",
    )

    def done() -> list[int]:
        """Of each query, how many steps it has done."""
        found = project.queries().values()
        return [0 if query["step"] is None else query["step"] + 1 for query in found]

    try:
        project.apply("--wait", "10m", seconds=700.0)
        eventually("one of them has done its steps", lambda: max(done()) >= STEPS, 600.0)
        counts = done()
        assert min(counts) >= max(counts) / 4, counts
    finally:
        project.down()
