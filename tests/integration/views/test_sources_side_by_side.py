"""A replaced source whose new generation runs beside the former one, until it has read its own upstream."""

from __future__ import annotations

import json

from deltalake import DeltaTable, Field, Schema

from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually

EVERY = {"trigger": {"interval": "200ms"}}
FILES = 5


def declare(project: Project, path: str) -> None:
    """Declare a source of files, a view that keeps totals of its rows, and a sink of the totals."""
    orders = {
        "connection": "lake",
        "path": path,
        "format": {"type": "json", "schema": "customer STRING, amount BIGINT"},
        "lifecycle": {"replace": "side-by-side"},
        "max_files_per_trigger": 1,
        "trigger": {"interval": "2s"},
    }
    query = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    written = {"from": "totals", "connection": "lake", "path": "by_customer", "mode": "upsert"}
    shop = {
        "connections": {"lake": {"type": "files", "path": str(project.folder / "lake")}},
        "sources": {"orders": orders},
        "views": {"totals": {"query": query, "output": "update", "key": ["customer"], **EVERY}},
        "sinks": {"written": {**written, "type": "delta", "key": ["customer"], **EVERY}},
    }
    project.write("sources_side_by_side", json.dumps(shop))


def put(project: Project, path: str, name: str, **amounts: int) -> None:
    folder = project.folder / "lake" / path
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"customer": customer, "amount": amount}) for customer, amount in amounts.items()]
    (folder / f".{name}").write_text("\n".join(rows))
    (folder / f".{name}").rename(folder / f"{name}.json")


def target(project: Project) -> dict[str, int]:
    rows = read_delta(project.folder / "lake" / "by_customer")
    return {row["customer"]: row["total"] for row in rows}


def test_readers_keep_the_former_source_until_the_new_one_has_read_its_folder(project: Project) -> None:
    for number in range(2):
        put(project, "in_v1", f"f{number}", ada=number, bob=1)
    for number in range(FILES):
        put(project, "in_v2", f"f{number}", ada=10, cyd=number)
    DeltaTable.create(
        str(project.folder / "lake" / "by_customer"),
        Schema([Field("customer", "string"), Field("total", "long")]),
    )
    declare(project, "in_v1")
    project.apply()
    eventually("the target has all rows", lambda: target(project) == {"ada": 1, "bob": 2})

    declare(project, "in_v2")
    project.apply("--allow-replace", "--wait", "1s", code=8)
    seen = project.queries()
    assert seen["source.orders"]["generation"] == 1 and seen["source.orders@2"]["generation"] == 2
    assert seen["view.totals"]["condition"] == "running" and seen["view.totals"]["generation"] == 1
    assert "generation 2 runs beside it" in project.run("why", "source.orders").stdout
    # The former generation still serves: a file that arrives now is in the target.
    put(project, "in_v1", "late", dan=7)
    former = {"ada": 1, "bob": 2, "dan": 7}
    kept: list[dict[str, int]] = []
    eventually("the late row is written", lambda: kept.append(target(project)) or kept[-1] == former)
    wanted = {"ada": 10 * FILES, "cyd": sum(range(FILES))}
    eventually("the new generation serves", lambda: kept.append(target(project)) or kept[-1] == wanted)
    # Never empty, and never some rows of each.
    assert all(rows in ({"ada": 1, "bob": 2}, former, wanted) for rows in kept)
    eventually("nothing runs beside", lambda: not any("@" in address for address in project.queries()))
    project.apply()
    assert project.run("verify", "view.totals").returncode == 0
    put(project, "in_v2", "more", bob=1)
    eventually("it goes on", lambda: target(project) == {**wanted, "bob": 1})
