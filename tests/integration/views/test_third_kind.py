"""A type of view that a package brings, which reads two collections: no other part of mzplan knows it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed import add_package
from tests.support import Project, eventually

PACKAGE = Path(__file__).parent / "third_kind"
SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, note STRING", trigger: {interval: 300ms}}
  payments: {type: local, schema: "id BIGINT NOT NULL", trigger: {interval: 300ms}}
"""
VIEW = """\
views:
  both:
    type: merged
    reads: [%s]
    schema: "id BIGINT NOT NULL, origin STRING, tag STRING"
    tag: %s
    trigger: {interval: 300ms}
"""
SINKS = "sinks:\n  shown: {type: console, from: both, trigger: {interval: 300ms}}\n"


class Shop:
    """Two local sources, merged by the view."""

    def __init__(self, project: Project):
        self.project = project
        self.sent: Counter[tuple[int, str]] = Counter()

    def declare(self, *, tag: str = "a", reads: str = "orders, payments", sources: str = SOURCES) -> None:
        self.project.write("shop", f"{sources}{VIEW % (reads, tag)}{SINKS}")

    def append(self, source: str, *ids: int) -> None:
        self.project.append(source, ({"id": id_} for id_ in ids))
        self.sent.update((id_, source) for id_ in ids)

    def rows(self) -> list[tuple[int, str, str]]:
        done = self.project.run("snapshot", "view.both", "--format", "json")
        assert done.returncode == 0, done.stderr
        rows = map(json.loads, done.stdout.splitlines())
        return sorted((row["id"], row["origin"], row["tag"]) for row in rows)

    def has_all(self) -> bool:
        """Whether the view has each row once."""
        return Counter((id_, origin) for id_, origin, _ in self.rows()) == self.sent

    def effects(self, *arguments: str) -> dict[str, str]:
        changes = self.project.json("plan", *arguments)["changes"]
        return {change["address"]: change["effect"] for change in changes}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site)
    environment = add_package(site, "mzplan-merged", "mzplan.connectors", "merged = mzplan_merged:connector")
    project = Project(tmp_path / "p", "merged", environment)
    yield Shop(project)
    project.down()


@pytest.mark.nightly
def test_a_view_that_reads_two_collections_lives_as_any_query(shop: Shop) -> None:
    project = shop.project
    shop.declare()
    assert list(shop.effects()) == ["source.orders", "source.payments", "view.both", "sink.shown"]
    project.apply()
    shop.append("orders", 1, 2, 3)
    shop.append("payments", 1, 2)
    eventually("all rows of both collections", shop.has_all)
    assert project.json("drift")["drift"] == []

    # Paused, it holds what it has still to read, of each collection.
    project.json("pause", "view.both", "--auto-approve")
    shop.append("orders", 4)
    shop.append("payments", 5)
    shop.append("payments", 6)
    eventually("three rows wait", lambda: project.queries()["view.both"]["lag"] == 3)
    upper = int(project.json("steps", "source.payments")["steps"][-1]["step"]) + 1
    refused = project.run("expire", "source.payments", "--before", str(upper))
    assert refused.returncode != 0 and "view.both" in refused.stderr
    project.json("resume", "view.both", "--auto-approve")
    eventually("the rows that waited", shop.has_all)

    # Another tag restarts the view alone; the rows that are there stay.
    runs = project.run_ids()
    shop.declare(tag="b")
    assert shop.effects() == {"view.both": "restart"}
    project.apply()
    shop.append("payments", 7)
    eventually("the row after the restart", shop.has_all)
    assert (7, "payments", "b") in shop.rows() and (1, "orders", "a") in shop.rows()
    assert project.restarted(runs) == {"view.both"}

    # A runner that is killed loses and doubles nothing.
    project.kill_runner()
    project.json("up")
    shop.append("orders", 8, 9)
    eventually("the rows after the kill", shop.has_all)

    # A new generation reads both collections from their start; so does one whose input begins again.
    readers = ("source.orders", "view.both", "sink.shown")
    assert shop.effects("--replace", "source.orders") == dict.fromkeys(readers, "replace")
    project.apply("--replace", "view.both", "--allow-replace")
    eventually("all rows again", shop.has_all)
    assert {tag for _, _, tag in shop.rows()} == {"b"}

    # A source under another name is the same collection.
    renamed = SOURCES.replace("  orders: {", "  purchases: {lifecycle: {moved_from: orders}, ")
    shop.declare(tag="b", reads="purchases, payments", sources=renamed)
    assert shop.effects()["view.both"] == "restart"  # its function knows the collection by name
    project.apply()
    shop.append("purchases", 10)
    eventually("the row of the renamed source", lambda: (10, "purchases", "b") in shop.rows())
    assert len(shop.rows()) == sum(shop.sent.values())

    # It goes, and its sink with it.
    project.write("shop", renamed)
    project.apply()
    assert set(project.queries()) == {"source.purchases", "source.payments"}
