"""`mzplan validate --sarif`: diagnostics for code scanning, in the shape that SARIF 2.1.0 requires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.unit.cli_runs import mzplan, write


def an_object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """Return the schema of an object. SARIF allows no further properties in these objects."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}
REGION = an_object(
    ("startLine",), **dict.fromkeys(("startLine", "startColumn", "endLine", "endColumn"), COUNT)
)
PLACE = an_object(
    ("artifactLocation",),
    region=REGION,
    artifactLocation=an_object(("uri",), uri={"type": "string", "pattern": r"^[\w%./-]+$"}),
)
LOCATION = an_object(
    (),
    physicalLocation=PLACE,
    logicalLocations={"type": "array", "items": an_object((), fullyQualifiedName=TEXT)},
)
RESULT = an_object(
    ("message",),
    ruleId=TEXT,
    level={"enum": ["none", "note", "warning", "error"]},
    message=an_object(("text",), text=TEXT),
    locations={"type": "array", "items": LOCATION},
)
DRIVER = an_object(
    ("name",),
    name=TEXT,
    version=TEXT,
    rules={"type": "array", "uniqueItems": True, "items": an_object(("id",), id=TEXT)},
)
RUN = an_object(
    ("tool",),
    tool=an_object(("driver",), driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
)
LOG = an_object(
    ("version", "runs"),
    **{"$schema": TEXT, "version": {"const": "2.1.0"}, "runs": {"type": "array", "items": RUN}},
)


def results_of(document: Any) -> list[dict[str, Any]]:
    """Check a SARIF log, and return the results of its one run."""
    Draft202012Validator(LOG).validate(document)
    (run,) = document["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == sorted(
        {result["ruleId"] for result in run["results"]}
    )
    return list(run["results"])


def test_each_error_is_a_result_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write(tmp_path / "repository" / "the shop")
    pipeline = project / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("connection: k,", "connection: nobody,"))
    monkeypatch.chdir(tmp_path / "repository")
    ran = mzplan(project, "validate", "--sarif")
    assert ran.code == 1
    (result,) = results_of(ran.json())
    assert (result["ruleId"], result["level"]) == ("MZ012", "error")
    assert (
        result["message"]["text"].startswith("Unknown connection\n") and "Fix: " in result["message"]["text"]
    )
    (location,) = result["locations"]
    assert location["logicalLocations"] == [{"fullyQualifiedName": "source.orders"}]
    place = location["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "the%20shop/pipeline.yaml"}
    assert place["region"] == {"startLine": 4, "startColumn": 24, "endLine": 4, "endColumn": 30}


def test_a_valid_project_has_no_results(tmp_path: Path) -> None:
    project = write(tmp_path / "p")
    ran = mzplan(project, "validate", "--sarif")
    assert (ran.code, results_of(ran.json())) == (0, [])
    settings = project / "mzplan.yaml"
    settings.write_text(settings.read_text() + "environments: {dev: {state: {path: s}, warehouse: ./w}}\n")
    ran = mzplan(project, "validate", "--sarif")
    assert (ran.code, results_of(ran.json())) == (0, [])


def test_sarif_and_json_are_two_documents(tmp_path: Path) -> None:
    ran = mzplan(write(tmp_path / "p"), "validate", "--sarif", "--json")
    assert ran.code == 64 and "can't be combined" in ran.err + ran.out
