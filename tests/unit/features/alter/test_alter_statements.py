"""The rules of ALTER statements as a table: each statement with its changes or errors.

The table is alter_statements.txt. The exact outcome follows each statement (`> …`): the diff of the file
without context, `same` for no change, or the errors. An error has its column in the statement (or its place
in the file), its code and its summary. The examples of docs/alter.md are tested, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mzplan.config.yaml.text_edits import rewrite
from mzplan.features.alter.alteration import edit_only
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import PropertyEdit
from mzplan.operations.project import Project, open_project
from tests.unit.config_files import write
from tests.unit.reporters import SilentReporter

FILE = """\
connections:
  k:
    type: kafka          # the broker of the shop
    brokers: [a:9092]    # one for now
  sec:
    type: kafka
    brokers:
      - a:9092   # first
      - b:9092
    security:
      protocol: SASL_SSL
      sasl: {mechanism: PLAIN, username: app, password: "${env:KAFKA}"}
      # where the certificates lie
      ssl:
        ca: ca.pem
        certificate: 'client.pem'
        key: "${file:client.key}"
  pg: {type: postgres, host: "${var.h}", database: s, user: 'u', password: "${env:PG}", tls: {mode: require}}
  lake: {type: files, path: ./lake}
  spare: &spare {type: kafka, brokers: [s:1]}
  twin: *spare
  door: {type: ssh-tunnel, host: door, user: t, known_hosts: known}   # no keys yet
  one: {type: ssh-tunnel, host: one, user: t, known_hosts: known, private_key: "${env:ONE}"}
  bastion:
    type: ssh-tunnel
    host: bastion   # the outer one
    user: t
    host_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJeD2CCNe3j7MDdajOWigJ+7H6r+e/usFpRIGat6Pij]
    private_key: "${file:keys/bastion-1}"   # primary
    secondary_key: "${env:NEXT}"
  reg: {type: schema-registry, url: "http://registry:8081"}
  cloud: {type: aws, region: eu-central-1}
  s3: {type: files, path: "s3://lake", aws: cloud}
  msk: {type: kafka, brokers: [b:9098], security: {protocol: SASL_SSL}, aws: cloud}
  far_pg: {type: postgres, host: db, database: s, user: u, ssh_tunnel: bastion}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
sinks:
  out: {type: console, from: orders}
  orders_pg:
    from: orders
    connection: pg   # the shop's
    table: public.orders
"""
SETTINGS = "version: 1\nproject: shop\nvariables: {h: {default: db}}\n"

TABLE = Path(__file__).with_name("alter_statements.txt")


def cases() -> list[tuple[str, str]]:
    blocks = TABLE.read_text(encoding="utf-8").split("\n\n")
    parts = [block.removeprefix("> ").partition("\n") for block in blocks if block.startswith("> ")]
    return [(statement, wanted.rstrip("\n")) for statement, _, wanted in parts]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = write(tmp_path_factory.mktemp("alter"), {"mzplan.yaml": SETTINGS, "shop.yaml": FILE})
    return open_project(str(folder))


def told(diagnostic: Diagnostic) -> str:
    where = diagnostic.range
    at = where.column if where and where.path == "<statement>" else where or "-"
    return f"{at} {diagnostic.code} {diagnostic.summary}"


def changed_lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines()[2:] if line[:1] in "+-"]


def outcome(project: Project, statement: str) -> str:
    """Return a statement's edit of the file. Restores the file afterwards."""
    file = Path(project.settings.directory) / "shop.yaml"
    try:
        altered = edit_only(project, SilentReporter(), statement)
    except MzplanError as problem:
        assert file.read_text() == FILE
        assert "hunter" not in str([d.to_json() for d in problem.diagnostics]) + repr(problem.diagnostics)
        return "\n".join(told(d) for d in problem.diagnostics)
    finally:
        now = file.read_text()
        file.write_text(FILE)
    notices = [f"{d.code} {d.summary}" for d in altered.notices]
    changed = []
    if altered.edits:
        edit = altered.edits[0]
        assert now == edit.after.decode()
        changed = [line[0] + line[1:].strip() for line in changed_lines(edit.diff)]
    return "\n".join([*changed, *notices]) or "same"


@pytest.mark.parametrize(("statement", "wanted"), cases(), ids=[c[0] or "empty" for c in cases()])
def test_a_statement_has_this_outcome(project: Project, statement: str, wanted: str) -> None:
    assert outcome(project, statement) == wanted


PAGE = (Path(__file__).parents[4] / "docs" / "alter.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```\n```diff\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize(("statement", "diff"), EXAMPLES)
def test_an_example_edits_what_the_page_says(tmp_path: Path, statement: str, diff: str) -> None:
    shop = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]
    page_project = open_project(str(write(tmp_path, {"shop.yaml": shop})))
    (edit,) = edit_only(page_project, SilentReporter(), statement).edits
    assert changed_lines(edit.diff) == diff.splitlines()


def test_editing_a_list_with_a_long_comment_takes_bounded_time() -> None:
    comment = "# " * 200 + "a, b"
    text = f'connections:\n  k:\n    type: kafka\n    brokers: ["a:1" {comment}\n      ]\n'
    edit = PropertyEdit(path=("brokers",), value=["a:1", "b:1"])
    after = rewrite(text, "connections", "k", [edit])
    assert comment in after and '"b:1"' in after
