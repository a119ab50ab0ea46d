"""`function`: views by Python functions are planned from text alone; the code is committed, and never run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mzplan.config import load_configuration
from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, brief, errors, resource, write

SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING"}
  cities: {type: local, schema: "customer STRING NOT NULL, city STRING", key: [customer]}
"""
VIEW = (
    SOURCES
    + """\
views:
  enriched:
    function: %s
    reads: [orders]
    snapshots: [cities]
    schema: "id BIGINT, city STRING"
    %s
sinks:
  out: {type: console, from: enriched}
"""
)
FILE = "transforms/enrich.py:with_city"
CODE = """\
from pyspark.sql import functions as f

raise SystemExit("a plan must not run this")


def with_city(orders, cities):
    return orders.join(cities, "customer").select("id", "city")
"""


def project(folder: Path, *, code: str | bytes = CODE, function: str = FILE, more: str = "") -> Path:
    files = {"mzplan.yaml": DRY, "a.yaml": VIEW % (function, more), "transforms/enrich.py": code}
    return write(folder, files)


def test_a_module_in_the_project_is_committed_as_text_and_never_run(tmp_path: Path) -> None:
    project(tmp_path)
    before = set(sys.modules)
    assert mzplan(tmp_path, "validate").code == 0
    plan = mzplan(tmp_path, "plan").out
    assert '      raise SystemExit("a plan must not run this")\n' in plan
    apply(tmp_path)
    assert planned_effects(tmp_path) == {}
    body = mzplan(tmp_path, "state", "show", "view.enriched").json()["body"]
    assert body["code"] == CODE and body["function"] == FILE and "type" not in body
    assert not {name for name in set(sys.modules) - before if "enrich" in name or "pyspark" in name}
    # Line breaks of another system are no change.
    project(tmp_path, code=CODE.replace("\n", "\r\n"))
    assert planned_effects(tmp_path) == {}


def test_a_package_is_needed_neither_to_plan_nor_to_commit(tmp_path: Path) -> None:
    project(tmp_path, function="no_such_package.enrich:with_city", more='requires: "no_such_package>=1.4,<2"')
    apply(tmp_path)
    assert "code" not in mzplan(tmp_path, "state", "show", "view.enriched").json()["body"]


@pytest.mark.parametrize(
    ("code", "function", "more", "expected"),
    [
        (CODE, "transforms/enrich.py:with_cit", "", "6:15 MZ360 transforms/enrich.py has no function"),
        (CODE, "transforms/none.py:f", "", "6:15 MZ001 Can't read transforms/none.py"),
        (CODE, "../enrich.py:f", "", "6:15 MZ001 Can't read ../enrich.py"),
        (CODE, "/etc/enrich.py:f", "", '6:15 MZ005 Wrong value for "function"'),
        (CODE, "os; import x:f", "", '6:15 MZ005 Wrong value for "function"'),
        ("def f(:\n", FILE, "", "transforms/enrich.py:1:7 MZ360 Not Python that can be parsed"),
        ("x = " + "(" * 5000, FILE, "", "MZ360 Not Python that can be parsed"),
        (b"\xff", FILE, "", "transforms/enrich.py:1:1 MZ002 Not UTF-8"),
        ("#" * 70000, FILE, "", "6:15 MZ360 transforms/enrich.py is too long"),
        ("k = '${env:KEY}'\nwith_city = print\n", FILE, "", "MZ102 A secret reference can't stand in"),
        (CODE, FILE, "code: print(1)", '10:11 MZ004 view.enriched sets "code"'),
        (CODE, FILE, "requires: shop; rm", '10:15 MZ005 Wrong value for "requires"'),
        (CODE, FILE, "query: SELECT 1", '10:5 MZ004 Unknown key "query"'),
        (CODE, FILE, "state: some", '10:12 MZ005 Wrong value for "state"'),
    ],
)
def test_a_mistake_is_an_error_at_its_place(
    tmp_path: Path, code: str | bytes, function: str, more: str, expected: str
) -> None:
    found = brief(errors(project(tmp_path, code=code, function=function, more=more)))
    assert len(found) == 1 and expected in found[0], found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("reads: [orders]", "reads: [cities]", "MZ020"),  # keyed, as a stream; and twice
        ("snapshots: [cities]", "snapshots: [orders]", "MZ360 view.enriched reads orders in two ways"),
        ("snapshots: [cities]", "snapshots: [paid]", "MZ360 paid has no stored rows"),
        ("reads: [orders]", "reads: [orders, paid]", "MZ020 Several streams beside snapshots"),
        ("reads: [orders]", "reads: [nothing]", "MZ012 Unknown source or view"),
        ('schema: "id BIGINT, city STRING"', "", 'MZ006 Missing key "schema"'),
        ("reads: [orders]", "", 'MZ006 Missing key "reads"'),
    ],
)
def test_what_a_function_cant_read_is_an_error(tmp_path: Path, old: str, new: str, expected: str) -> None:
    project(tmp_path)
    paid = '  paid: {query: "SELECT * FROM orders", materialize: false}\n'
    text = (VIEW % (FILE, "")).replace("views:\n", f"views:\n{paid}")
    assert old in text
    found = brief(errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": text.replace(old, new)}))
    assert any(expected in line for line in found), found


def test_a_link_out_of_the_project_isnt_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("with_city = 1\n")
    folder = project(tmp_path / "p")
    (folder / "transforms/enrich.py").unlink()
    (folder / "transforms/enrich.py").symlink_to("../../secret.py")
    (found,) = errors(folder)
    assert found.code == "MZ001" and "with_city = 1" not in str(found)


def test_the_type_follows_from_the_function(tmp_path: Path) -> None:
    assert resource(load_configuration(project(tmp_path)), "view.enriched").type == "function"
    assert resource(load_configuration(project(tmp_path)), "view.enriched").references.keys() == {
        "reads[0]",
        "snapshots[0]",
    }


@pytest.mark.parametrize(
    ("state", "snapshots", "effect", "words"),
    [
        ("", False, "replace", "nobody says whether the new function understands the state"),
        ("state: unknown", False, "replace", "`state: kept`"),
        ("state: kept", False, "restart", "its state is kept: its author says"),
        ("state: none", False, "restart", ""),
        ("", True, "restart", ""),  # each micro-batch by itself
    ],
)
def test_the_authors_word_decides_what_another_function_does(
    tmp_path: Path, state: str, snapshots: bool, effect: str, words: str
) -> None:
    project(tmp_path, more=state)
    text = (tmp_path / "a.yaml").read_text()
    (tmp_path / "a.yaml").write_text(text if snapshots else text.replace("    snapshots: [cities]\n", ""))
    apply(tmp_path)
    (tmp_path / "transforms/enrich.py").write_text(CODE.replace('"id", "city"', '"id", f.upper("city")'))
    assert planned_effects(tmp_path)["view.enriched"] == effect
    shown = mzplan(tmp_path, "plan").out
    assert words in shown and "f.upper" in shown
    change = next(c for c in mzplan(tmp_path, "plan", "--json").json()["changes"] if "view" in c["address"])
    assert change["query"]["state"] == ("unknown" if effect == "replace" else "kept")
    assert (
        '+    return orders.join(cities, "customer").select("id", f.upper("city"))' in change["query"]["diff"]
    )
    if effect == "replace":
        refused = mzplan(tmp_path, "apply", "--auto-approve")
        assert refused.code == 7 and "--allow-replace" in refused.err


def test_an_added_word_changes_nothing_by_itself(tmp_path: Path) -> None:
    project(tmp_path)
    apply(tmp_path)
    project(tmp_path, more="state: none")
    assert planned_effects(tmp_path) == {"view.enriched": "in-place"}


SINK = (
    SOURCES
    + """\
sinks:
  told: {from: %s, function: "shop.told:tell"%s}
"""
)


@pytest.mark.parametrize(
    ("read", "more", "expected"),
    [
        ("orders", "", ""),
        ("orders", ", mode: upsert, key: [id], select: [id], where: id > 1", ""),
        ("cities", ", mode: upsert, key: [customer]", ""),
        ("cities", "", "MZ020"),  # its rows change
        ("orders", ", mode: upsert", 'MZ006 Missing key "key"'),
        ("orders", ", key: [id]", "A key without the mode upsert"),
        ("orders", ", state: kept", 'MZ004 Unknown key "state"'),
    ],
)
def test_a_sink_function_is_checked_as_any_sink(tmp_path: Path, read: str, more: str, expected: str) -> None:
    found = brief(errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": SINK % (read, more)}))
    assert expected in "".join(found) and len(found) == bool(expected), found


def test_a_plan_says_that_a_sink_function_is_at_least_once(tmp_path: Path) -> None:
    write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": SINK % ("orders", ", delivery: exactly-once")})
    assert "MZ085" in mzplan(tmp_path, "plan").out
    write(tmp_path, {"a.yaml": SINK % ("orders", "")})
    assert "sink.told: it writes each row at least once" in mzplan(tmp_path, "plan").out
