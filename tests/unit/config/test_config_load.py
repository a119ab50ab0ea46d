"""Files → resources: merging, normal form, variables, settings, look-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mzplan.config import load_configuration, load_project
from mzplan.config.locations import locate
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import Instance
from mzplan.operations.project import open_project
from tests.support import refusal
from tests.unit.config_files import PROJECT, SHOP, brief, errors, load, resource, write


def test_resources_are_typed_normal_and_sorted(tmp_path: Path) -> None:
    configuration = load(tmp_path, {"shop/all.yaml": SHOP})
    assert configuration.project == "shop" and configuration.warehouse == "./warehouse"
    assert configuration.instances == {"local": Instance(name="local", type="embedded")}
    addresses = "connection.lake connection.shop_kafka connection.shop_pg sink.orders_pg source.orders"
    assert " ".join(map(str, configuration.resources)) == addresses
    sink = resource(configuration, "sink.orders_pg")
    assert sink.type == "postgres" and sink.path == "shop/all.yaml"
    references = {name: str(address) for name, address in sink.references.items()}
    assert references == {"from": "source.orders", "connection": "connection.shop_pg"}
    assert list(sink.body) == ["connection", "from", "key", "mode", "table"]
    assert resource(configuration, "connection.shop_pg").body["password"] == "${env:PG_PASSWORD}"


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        ("", "local"),
        ("instances: {prod: {type: cluster}}\n", "prod"),
        ("instances: {prod: {type: cluster}, local: {type: embedded}}\n", "local"),
    ],
)
def test_a_single_instance_is_every_querys_default(tmp_path: Path, instances: str, expected: str) -> None:
    settings = PROJECT + instances
    found = load(tmp_path / "a", {"mzplan.yaml": settings, "a.yaml": SHOP})
    queries = [r for a, r in found.resources.items() if a.is_query]
    assert {query.instance for query in queries} == {expected}
    assert all("instance" not in r.body for a, r in found.resources.items() if a.is_connection)
    # Naming it is no difference: neither to what a state without the name says, nor to one with it.
    named = SHOP.replace("topic: orders", f"topic: orders\n    instance: {expected}")
    assert load(tmp_path / "b", {"mzplan.yaml": settings, "a.yaml": named}).resources == found.resources


def test_links_are_followed_once(tmp_path: Path) -> None:
    """A file behind a link counts once, a linked folder of the project is read once, loops end."""
    far = "connections:\n  far: {type: files, path: x}\n"
    project = write(tmp_path / "project", {"a.yaml": SHOP, "elsewhere/b.yaml": far})
    elsewhere = project / "elsewhere"
    (project / "linked").symlink_to(elsewhere)
    (project / "again.yaml").symlink_to(project / "a.yaml")
    (project / "loop").symlink_to(project)
    (project / "up").symlink_to(tmp_path)
    (project / "root").symlink_to("/")
    (elsewhere / "back").symlink_to(elsewhere)
    configuration = load_configuration(project)
    assert resource(configuration, "connection.far").path == "elsewhere/b.yaml"
    assert resource(configuration, "source.orders").path == "a.yaml"


DECLARED = "env: {default: dev}\n  port: {default: 5432}\n  flag: {default: true}\n  need: {}\n"
VARIABLES = f"{PROJECT}variables:\n  {DECLARED}"
USES = """\
connections:
  pg:
    type: postgres
    host: "db.${var.env}.example"
    port: ${var.port}
    database: "${var.env}_${var.port}_${var.flag}"
    user: ${var.need}
    password: ${env:PG}
"""


def values(folder: Path, **options: Any) -> tuple[Any, ...]:
    body = resource(load_configuration(folder, **options), "connection.pg").body
    return body["host"], body.get("port", 5432), body["database"], body["user"], body["password"]


def test_variables_and_their_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, {"mzplan.yaml": VARIABLES, "a.yaml": USES})
    first, second = tmp_path / "1.vars.yaml", tmp_path / "2.vars.yaml"
    first.write_text("env: file\nport: 1111\n")
    second.write_text("port: 2222\n")
    expected = ("db.dev.example", 5432, "dev_5432_true", "me", "${env:PG}")
    assert values(folder, variables={"need": "me"}) == expected
    for name, value in {"ENV": "outside", "need": "lower", "PORT": "6000", "NOBODY": "x"}.items():
        monkeypatch.setenv(f"MZPLAN_VAR_{name}", value)
    assert values(folder)[:4] == ("db.outside.example", 6000, "outside_6000_true", "lower")
    assert values(folder, variable_files=[first, second])[:2] == ("db.file.example", 2222)
    assert values(folder, variable_files=[str(first)], variables={"env": "given"})[0] == "db.given.example"


def test_a_variable_keeps_its_text_wherever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(default: str = "x", **options: Any) -> Any:
        files: dict[str, str | bytes] = {
            "mzplan.yaml": PROJECT + f"variables: {{build: {{default: {default}}}}}\n",
            "a.yaml": SHOP.replace("topic: orders", "topic: t\n    description: t-${var.build}"),
        }
        return resource(load(tmp_path, files, **options), "source.orders").body["description"]

    assert text("010") == "t-010"
    for given in ("1.10", "a: b", "'open", "9" * 30):
        assert text(variables={"build": given}) == f"t-{given}"
    assert text(variables={"build": "'5'"}) == "t-5"
    (tmp_path / "v.vars.yaml").write_text("build: 01443e5\n")
    assert text(variable_files=[tmp_path / "v.vars.yaml"]) == "t-01443e5"
    monkeypatch.setenv("MZPLAN_VAR_BUILD", "007")
    assert text() == "t-007"


def test_errors_of_variable_files_have_their_place(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"mzplan.yaml": VARIABLES, "a.yaml": USES})
    bad = tmp_path / "vars.yaml"
    bad.write_text("nede: x\nneed: [1]\n")
    found = errors(folder, {"mzplan.yaml": VARIABLES}, variable_files=[bad])
    assert [d.code for d in found] == ["MZ015"] * 3
    assert str(found[0].range) == f"{bad}:1:1" and 'did you mean "need"' in found[0].hint
    missing = errors(folder, {"mzplan.yaml": VARIABLES}, variable_files=[tmp_path / "no"])
    assert [d.code for d in missing] == ["MZ001", "MZ015"]


def test_a_file_of_variables_is_not_read_as_configuration(tmp_path: Path) -> None:
    folder = write(tmp_path, {"mzplan.yaml": VARIABLES, "a.yaml": USES, "dev.vars.yml": "["})
    (folder / "prod.vars.yaml").write_text("need: prod\n")
    assert values(folder, variable_files=[tmp_path / "prod.vars.yaml"])[3] == "prod"
    (tmp_path / "values.yaml").write_text("need: other\n")
    (tmp_path / "link.yaml").symlink_to("values.yaml")
    assert values(folder, variable_files=[tmp_path / "values.yaml"])[3] == "other"
    assert load_project(folder, {}, [tmp_path / "values.yaml"]).warehouse == "./warehouse"
    (tmp_path / "link.yaml").unlink()
    (found,) = errors(folder, {"mzplan.yaml": VARIABLES}, variables={"need": "x"})
    assert found.code == "MZ004" and "*.vars.yaml" in found.hint
    (tmp_path / "values.yaml").unlink()
    (tmp_path / "shop.vars.yaml").write_text("sources:\n  orders: {}\n")
    (found,) = errors(folder, {"mzplan.yaml": VARIABLES}, variables={"need": "x"})
    assert found.code == "MZ015" and "shop.vars.yaml" in found.summary


def test_project_settings_need_no_other_file(tmp_path: Path) -> None:
    text = (
        "version: 1\nproject: shop\nwarehouse: s3://bucket/${var.env}\nstate: {path: st}\n"
        "instances: {local: {type: dry}, prod: {type: cluster}}\nvariables: {env: {default: dev}, need: {}}\n"
        "sources: {x: {topic: '${var.need}'}}\n"
    )
    write(tmp_path, {"mzplan.yaml": text, "broken.yaml": "a: [\n"})
    settings = load_project(tmp_path)
    assert (settings.directory, settings.project) == (str(tmp_path), "shop")
    assert (settings.warehouse, settings.state) == ("s3://bucket/dev", {"backend": "local", "path": "st"})
    assert [(i.name, i.type) for i in settings.instances.values()] == [("local", "dry"), ("prod", "cluster")]
    assert load_project(tmp_path, {"env": "prod"}).warehouse == "s3://bucket/prod"
    assert open_project(str(tmp_path)).store.backend.describe() == str(tmp_path / "st")
    bucket = "state: {backend: object-store, url: 's3://bucket/shop', region: eu-west-1}"
    write(tmp_path, {"mzplan.yaml": text.replace("state: {path: st}", bucket)})
    assert open_project(str(tmp_path)).store.backend.describe() == "s3://bucket/shop"
    write(tmp_path, {"mzplan.yaml": text.replace("project: shop", "project: Shop")})
    found = refusal(lambda: load_project(tmp_path))
    assert brief([found]) == ['mzplan.yaml:2:10 MZ005 Wrong value for "project"']


def test_a_diagnostic_is_located_after_the_load(tmp_path: Path) -> None:
    write(tmp_path, {"deep/a.yaml": SHOP})
    sink = Diagnostic(code="MZ041", summary="no", address=Address("sink", "orders_pg"))
    assert str(locate(tmp_path, sink).range) == "deep/a.yaml:16:3"
    assert str(locate(tmp_path, sink, ("key", 0)).range) == "deep/a.yaml:21:11"
    assert str(locate(tmp_path, sink, ("select",)).range) == "deep/a.yaml:16:3"
    diagnostic = Diagnostic(code="MZ041", summary="no", address=Address("connection", "shop_pg"))
    placed = locate(tmp_path, diagnostic, ("host",))
    assert str(placed.range) == "deep/a.yaml:5:11" and placed.excerpt == "    host: localhost"
    nowhere = Diagnostic(code="MZ041", summary="no", address=Address("sink", "orders"))
    assert locate(tmp_path, nowhere) is nowhere


def test_pyyaml_without_its_c_parser_gives_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML may have been built without its C parser."""
    bad: dict[str, str | bytes] = {"a.yaml": SHOP.replace("mode: upsert", "mode: é x"), "b.yaml": "a: [b\n"}
    expected, whole = brief(errors(tmp_path / "a", bad)), load(tmp_path / "b", {"a.yaml": SHOP})
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    found = brief(errors(tmp_path / "a", bad))
    assert found == expected
    assert load(tmp_path / "b", {"a.yaml": SHOP}) == whole
