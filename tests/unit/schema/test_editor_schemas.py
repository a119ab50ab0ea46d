"""The schemas for editors: valid ones of their draft, in agreement with what `mzplan validate` takes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from mzplan.schema.editor import PIPELINE, PROJECT, TESTS, editor_schemas
from tests.unit.cli_runs import mzplan
from tests.unit.connectors.test_plugins import acme, install, site

__all__ = ["site"]  # the fixture

CASES = Path(__file__).parents[2] / "cases"


@cache
def validator(file: str) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(editor_schemas()[file])


def is_valid(file: str, text: str) -> bool:
    return validator(file).is_valid(json.loads(json.dumps(yaml.safe_load(text))))


def test_schemas_for_editors_use_no_keyword_of_mzplan() -> None:
    for schema in editor_schemas().values():
        jsonschema_rs.Draft7Validator(schema)
        assert '"x-' not in json.dumps(schema)


def test_a_valid_project_is_valid_in_an_editor() -> None:
    files = sorted(CASES.glob("*/*/*.yaml"))
    assert len(files) > 60
    for file in files:
        name = PROJECT if file.name == "mzplan.yaml" else PIPELINE
        assert is_valid(name, file.read_text()), file


def test_a_file_of_tests_is_checked_in_an_editor() -> None:
    shop = (Path(__file__).parents[3] / "examples/shop/tests/shop.yaml").read_text()
    assert is_valid(TESTS, shop)
    assert not is_valid(TESTS, shop.replace("expect:", "expects:"))


def test_a_valid_file_is_valid_alone() -> None:
    for text in (
        "",
        "sinks:",
        "connections: {p: {type: postgres, host: h, port: '${var.p}', database: d, user: u}}",
        "sources: {s: {connection: k, topic: t, format: {type: text}, trigger: {interval: '${var.i}'}}}",
        "sources: {s: {connection: k, topic: t, for_each: [a], format: '${each.value}'}}",
        "sources: {s: {connection: k, topic: t, for_each: [a],"
        " format: {type: json, schema: 'a INT'}, envelope: {type: upsert, key: '${each.value.k}'}}}",
        "sinks: {s: {for_each: [a], from: o, connection: k, table: t, mode: upsert, key: '${each.value.k}'}}",
        "views: {v: {query_file: sql/v.sql}}",
        "views: {v: {query_file: '${var.file}'}}",
    ):
        assert is_valid(PIPELINE, text), text


def test_a_wrong_file_is_wrong_alone() -> None:
    for text in (
        "connections: {k: {type: '${var.t}', brokers: [a:1]}}",  # nor does validate take it
        "connections: {k: {brokers: [a:1]}}",
        "connections: {k: {type: kafka, brokers: [a:1], host: h}}",
        "connections: {k: {type: kafka, brokers: '${each.value}'}}",
        "connections: {p: {type: postgres, host: h, port: high, database: d, user: u}}",
        "sources: {s: {connection: k, topic: t, format: {type: text}, trigger: {interval: soon}}}",
        "sinks: {s: {from: o, connection: k, table: t, mode: upsert, key: '${each.value.k}s'}}",
        "sinks: {s: {type: console, from: v, query_file: v.sql}}",
        "views: {v: {query_file: v.txt}}",
    ):
        assert not is_valid(PIPELINE, text), text


def test_a_connector_of_another_package_has_a_schema(site: Path) -> None:
    install(site, "acme-connector", "acme = acme_connector:connector", acme())
    definitions = editor_schemas()[PIPELINE]["definitions"]
    assert "source.acme" in definitions and "acme" in definitions["source"]["properties"]["type"]["enum"]


def test_schemas_are_written_where_the_files_refer_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    written: dict[str, Any] = mzplan(folder, "init", "--json").json()
    names = [Path(one).name for one in written["written"]]
    assert names == ["mzplan.yaml", PIPELINE, PROJECT, TESTS, ".gitignore"]
    assert (folder / ".mzplan/schemas/.gitignore").read_text() == "*\n"
    assert mzplan(folder, "validate").code == 0
    ran = mzplan(folder, "schema", "--editor", "--out", str(tmp_path / "shared"))
    assert "$schema=../shared/pipeline.json" in ran.out and (tmp_path / "shared" / PROJECT).exists()
    assert mzplan(folder, "schema", "sink.delta", "--editor").code == 64
    assert mzplan(folder, "schema", "--out", "x").code == 64
    (tmp_path / "file").write_text("")
    ran = mzplan(folder, "schema", "--editor", "--out", str(tmp_path / "file" / "x"), "--json")
    assert ran.error()["code"] == "MZ035"


def test_a_folder_that_a_checkout_brings_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / ".mzplan").symlink_to(tmp_path / "theirs")
    for command in (("init",), ("schema", "--editor")):
        ran = mzplan(folder, *command, "--json")
        assert (ran.code, ran.error()["code"]) == (7, "MZ076")
    assert not (folder / "mzplan.yaml").exists() and not list((tmp_path / "theirs").iterdir())
