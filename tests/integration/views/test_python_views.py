"""Views by Python functions on Spark: example, kill, failure, change, state, version, verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.cli.init import copy_example
from tests.installed import add_package
from tests.support import Project, drop_file, eventually

FAST = "trigger: {interval: 300ms}"
PIPELINE = f"""\
sources:
  orders: {{type: local, schema: "id BIGINT NOT NULL, customer STRING", {FAST}}}
views:
  shown:
    function: %s
    reads: [orders]
    schema: "id BIGINT, text STRING"
    state: %s
    {FAST}
"""
TEXTS = """\
def text(customer):
    if customer == "bad":
        raise ValueError("no text for this customer")
    return "%s" + customer


def shown(orders):
    from pyspark.sql import functions as f
    return orders.select("id", f.udf(text)("customer").alias("text"))
"""


def unordered(project: Project, view: str) -> list[dict[str, Any]]:
    done = project.run("snapshot", view, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows(project: Project, view: str) -> list[dict[str, Any]]:
    return sorted(unordered(project, view), key=lambda row: row["id"])


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "p", "python_views", None)
    yield made
    made.down()


def declare(project: Project, function: str = "transforms/texts.py:shown", state: str = "none") -> None:
    project.write("shop", PIPELINE % (function, state))


def write(project: Project, text: str) -> None:
    path = project.folder / "transforms" / "texts.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_the_example_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "p", "python_view", None)
    (project.folder / "mzplan.yaml").unlink()
    copy_example("python-view", project.folder)
    try:
        project.apply()
        project.append("cities", [{"customer": "jose", "city": "Madrid"}])
        eventually("both orders", lambda: len(rows(project, "view.orders_with_city")) == 2)
        drop_file(project.folder / "inbox" / "tuesday.json", [{"id": 4, "customer": "JOSÉ", "amount": 2}])
        eventually("the order of tuesday", lambda: len(rows(project, "view.orders_with_city")) == 3)
        last = rows(project, "view.orders_with_city")[-1]
        assert (last["id"], last["customer"], last["city"]) == (4, "jose", "Madrid")

        def totals() -> dict[str, str]:
            return {row["customer"]: row["amount"] for row in unordered(project, "view.by_customer")}

        eventually("the totals", lambda: totals() == {"jose": "7.00", "ada": "7.50"})
        for view in ("clean_orders", "orders_with_city", "by_customer"):
            verified = project.run("verify", f"view.{view}", "--from-upstream")
            assert verified.returncode == 0, verified.stdout + verified.stderr
    finally:
        project.down()


def test_a_function_fails_is_corrected_and_survives_a_kill(project: Project) -> None:
    write(project, TEXTS % "a ")
    declare(project)
    project.apply()
    project.append("orders", [{"id": 1, "customer": "x"}])
    eventually("the first row", lambda: len(rows(project, "view.shown")) == 1)
    project.append("orders", [{"id": 2, "customer": "bad"}])

    def error() -> str:
        return str(project.queries()["view.shown"]["error"])

    eventually("the error", lambda: "transforms/texts.py:3" in error())
    assert "ValueError: no text for this customer" in error() and "py4j" not in error()
    assert "Traceback" not in error() and "PythonRunner" not in error()
    # A proposal's code isn't run, because its author may not have the right to commit it.
    proof = project.folder / "ran"
    write(project, f"open({str(proof)!r}, 'w').close()\n{TEXTS % 'b '}")
    looked = project.run("plan", "--live")
    assert "MZ365" in looked.stdout + looked.stderr and not proof.exists()
    # An edit of the file alone changes nothing for the runner: it runs the committed text.
    write(project, (TEXTS % "b ").replace('== "bad"', "is None"))
    project.kill_runner()
    project.json("up")
    eventually("the error again", lambda: "transforms/texts.py:3" in error())
    assert project.json("plan")["changes"][0]["effect"] == "restart"
    project.apply()
    eventually("all rows", lambda: len(rows(project, "view.shown")) == 2)
    assert [row["text"] for row in rows(project, "view.shown")] == ["a x", "b bad"]


STATEFUL = """\
def shown(orders):
    from pyspark.sql import functions as f
    return orders.dropDuplicates(["customer"]).select("id", f.concat(f.lit("%s"), "customer").alias("text"))
"""


def test_state_is_kept_by_the_authors_word_alone(project: Project) -> None:
    write(project, STATEFUL % "a ")
    declare(project, state="none")
    refused = project.apply(code=8)
    assert "it keeps no state" in json.dumps(refused) or "keeps no state" in str(project.queries())
    declare(project, state="kept")
    project.apply()
    project.append("orders", [{"id": 1, "customer": "x"}])
    eventually("the first row", lambda: len(rows(project, "view.shown")) == 1)
    write(project, STATEFUL % "b ")
    assert project.json("plan")["changes"][0]["query"]["state"] == "kept"
    project.apply()
    project.append("orders", [{"id": 2, "customer": "x"}, {"id": 3, "customer": "y"}])
    eventually("the row of y", lambda: len(rows(project, "view.shown")) == 2)
    assert [row["text"] for row in rows(project, "view.shown")] == ["a x", "b y"]
    declare(project, state="unknown")
    write(project, STATEFUL % "c ")
    assert project.json("plan")["changes"][0]["action"] == "replace"
    project.apply("--allow-replace")
    eventually("all rows again", lambda: [r["text"][:1] for r in rows(project, "view.shown")] == ["c", "c"])


@pytest.mark.nightly
def test_another_version_of_a_package_is_drift(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "shop_texts.py").write_text(TEXTS % "a ")
    environment = add_package(site, "shop-texts", "shop.none", "none = shop_texts:shown")
    next(site.glob("*.dist-info")).joinpath("top_level.txt").write_text("shop_texts\n")
    metadata = next(site.glob("*.dist-info")) / "METADATA"
    project = Project(tmp_path / "p", "python_views", environment)
    try:
        declare(project, "shop_texts:shown")
        project.apply()
        project.append("orders", [{"id": 1, "customer": "x"}])
        eventually("the first row", lambda: len(rows(project, "view.shown")) == 1)
        before = project.queries()["view.shown"]["function"]
        assert before.startswith("shop-texts ")
        project.json("down")
        metadata.write_text("Metadata-Version: 2.1\nName: shop-texts\nVersion: 7.0\n")
        (site / "shop_texts.py").write_text(TEXTS % "b ")
        project.json("up")
        eventually("drift", lambda: [d["kind"] for d in project.json("drift")["drift"]] == ["code-changed"])
        assert project.json("plan")["changes"][0]["effect"] == "restart"
        project.apply()
        eventually("no drift", lambda: project.json("drift")["drift"] == [])
        assert project.queries()["view.shown"]["function"] == "shop-texts 7.0"
    finally:
        project.down()


SINK = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING", key: [id], trigger: {interval: 300ms}}
sinks:
  told:
    from: orders
    function: sinks/told.py:tell
    mode: upsert
    key: [id]
    trigger: {interval: 300ms}
"""
TOLD = """\
import json
from pathlib import Path

TOLD = Path(%r)


def tell(rows, step):
    found = sorted((row.asDict() for row in rows.collect()), key=lambda row: row["id"])
    if any(row["customer"] == "bad" for row in found) and not Path(f"{TOLD}.ready").exists():
        raise ConnectionError("the other side isn't ready")
    with TOLD.open("a") as file:
        file.write(json.dumps([step, found]) + "\\n")
"""


def test_a_sink_function_gets_each_step_until_it_succeeds(project: Project, tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    path = project.folder / "sinks" / "told.py"
    path.parent.mkdir()
    path.write_text(TOLD % str(told))
    project.write("shop", SINK)
    plan = project.run("plan")
    assert "at least once" in plan.stdout, plan.stdout
    project.apply()
    project.append("orders", [{"id": 1, "customer": "a"}, {"id": 2, "customer": "b"}])

    def steps() -> list[Any]:
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    eventually("the first step", lambda: len(steps()) == 1)
    assert steps()[0][1] == [
        {"id": 1, "customer": "a", "_change": "upsert"},
        {"id": 2, "customer": "b", "_change": "upsert"},
    ]
    project.append("orders", [{"id": 3, "customer": "bad"}])

    def error() -> str:
        return str(project.queries()["sink.told"]["error"])

    eventually("the error", lambda: "sinks/told.py:10" in error())
    assert "ConnectionError: the other side isn't ready" in error()
    assert "[MZ362]" in project.run("status").stdout
    Path(f"{told}.ready").touch()
    project.append("orders", [{"id": 1}], "--delete")
    eventually("the other steps", lambda: len(steps()) == 3)
    assert [step for step, _ in steps()] == [steps()[0][0] + number for number in range(3)]
    assert [(row["id"], row["_change"]) for _, given in steps()[1:] for row in given] == [
        (3, "upsert"),
        (1, "delete"),
    ]
