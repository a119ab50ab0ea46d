"""`mzplan schema --editor` in the server that editors run: what it completes, explains and underlines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.editors.language_server import LanguageServer, installed, missing
from tests.programs import skip_without
from tests.unit.cli_runs import mzplan

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITTEN = """\
# yaml-language-server: $schema=.mzplan/schemas/pipeline.json
connections:
  k:
    type: kafka
    brokers: ["${var.broker}"]
    security: {protocol: SASL_PLAIN}
    brokrs: [x]
    \

  pg: {type: postgres, host: h, port: "${var.port}", database: d, user: u, password: plain}
  lost: {type: postgres, host: h, port: text, user: u, password: "${env:P}"}
sources:
  orders:
    connection: k
    topic: orders
    tpic: x
    format: {type: json, schema: "id BIGINT"}
  inside: {connection: {type: kafka, broker: b}, topic: t, format: {type: text}}
"""
PROBLEMS = [
    '6: Value is not accepted. Valid values: "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL".',
    "7: Property brokrs is not allowed.",
    "9: A secret is written as a reference, such as ${env:NAME} or ${file:PATH}.",
    '10: Incorrect type. Expected "integer".',
    '10: Missing property "database".',
    "15: Property tpic is not allowed.",
    '17: Missing property "brokers".',
    "17: Property broker is not allowed.",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as `init` begins it, and every example as `init --from` copies it."""
    folder = tmp_path_factory.mktemp("project")
    assert mzplan(folder, "init").code == 0
    for example in EXAMPLES.glob("*/mzplan.yaml"):
        if "kind:" not in example.read_text():
            assert mzplan(folder / example.parent.name, "init", "--from", example.parent.name).code == 0
    (folder / "pipeline.yaml").write_text(WRITTEN)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageServer]:
    skip_without(missing())
    opened = LanguageServer(installed(tmp_path_factory.mktemp("npm")), folder)
    yield opened
    opened.close()


def test_what_is_wrong_is_underlined_and_keys_are_offered(server: LanguageServer, folder: Path) -> None:
    file = folder / "pipeline.yaml"
    assert sorted(server.problems(file)) == sorted(PROBLEMS)
    of_kafka = {"aws", "defaults", "description", "labels", "lifecycle", "options"}
    assert set(server.completed(file, 7, 4)) == of_kafka
    assert set(server.completed(file, 3, 10)) >= {"kafka", "postgres", "ssh-tunnel"}
    assert "The brokers to connect to first, as host:port." in server.explained(file, 4, 6)
    assert "The security protocol of the listener." in server.explained(file, 5, 16)


def test_no_example_has_anything_underlined(server: LanguageServer, folder: Path) -> None:
    files = sorted(folder.glob("*/*.yaml"))
    assert len(files) > 8
    assert {file.name: found for file in files if (found := server.problems(file))} == {}
    assert server.problems(folder / "mzplan.yaml") == []
