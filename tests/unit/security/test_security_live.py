"""`--live` from here sends secrets only where the committed state, a policy or its user lets them go
(docs/security.md)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.admission import GuardedSecrets, flows_of_state
from mzplan.connectors.api.queries import resolve
from mzplan.model.diagnostics import MzplanError
from mzplan.operations.local_checks import read_only_guard
from mzplan.operations.project import open_project
from mzplan.schema.description import describe
from mzplan.secrets.guards import CommittedFlowsGuard
from mzplan.secrets.policy import Allowance, Policy, read_policy
from tests.unit.cli_runs import Ran, mzplan, write
from tests.unit.small_projects import at, commit, console, kafka, postgres, project, sink, source

PIPELINE = """\
connections:
  here: {{type: files, path: data}}
  pg: {{type: postgres, host: {host}, port: {port}, database: d, user: a, password: "{password}"}}
sources:
  orders: {{connection: here, path: inbox, format: {{type: json, schema: "id BIGINT"}}}}
sinks:
  orders_pg: {{from: orders, connection: pg, table: public.orders}}
"""
PASSWORD = "${env:LIVE_TEST_PASSWORD}"
LOOKING = (("plan", "--live"), ("validate", "--live"))


@pytest.fixture
def port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.fixture
def shop(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a CI job, whose database does not answer, of an instance without a runner."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("LIVE_TEST_PASSWORD", "of-production")
    monkeypatch.delenv("MZPLAN_POLICY", raising=False)
    folder = write(tmp_path / "shop", "cluster")
    return pipeline(folder, port)


def pipeline(folder: Path, port: int, host: str = "127.0.0.1", password: str = PASSWORD) -> Path:
    (folder / "pipeline.yaml").write_text(PIPELINE.format(host=host, port=port, password=password))
    return folder


def of_sink(ran: Ran) -> dict[str, Any]:
    """What was found of the sink: MZ050 where its server was asked, MZ107 where the secret stayed here."""
    (found,) = [d for d in ran.json()["diagnostics"] if d["address"] == "sink.orders_pg"]
    assert "of-production" not in ran.out + ran.err and isinstance(found, dict)
    return found


def code(folder: Path, *arguments: str) -> str:
    return str(of_sink(mzplan(folder, *arguments, "--json"))["code"])


def committed(folder: Path) -> Path:
    assert mzplan(folder, "apply", "--auto-approve", "--no-live", "--wait", "0s").code == 8
    return folder


def test_the_printed_policy_or_send_secrets_lets_secrets_go(shop: Path) -> None:
    looked = mzplan(shop, "plan", "--live", "--json")
    assert looked.json()["changes"] and of_sink(looked)["severity"] == "warning"
    checked = mzplan(shop, "validate", "--live", "--json")
    refused = of_sink(checked)
    assert checked.code == 1 and refused["code"] == "MZ107" and refused["severity"] == "error"
    assert "--send-secrets" in refused["hint"]
    lines = re.sub(r"\A.*?(?=\[\[allow)", "", refused["hint"], flags=re.DOTALL)
    policy = shop.parent / "policy.toml"
    policy.write_text(lines)
    for command in LOOKING:
        assert code(shop, *command, "--send-secrets") == "MZ050"
        assert code(shop, *command, "--policy", str(policy)) == "MZ050"


def test_secrets_go_freely_outside_of_ci_and_checkouts(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI")
    assert [code(shop, *command) for command in LOOKING] == ["MZ050", "MZ050"]
    (shop.parent / ".git").mkdir()
    assert [code(shop, *command) for command in LOOKING] == ["MZ107", "MZ107"]


def test_a_password_that_libpq_finds_by_itself_is_a_secret_too(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shop / "pipeline.yaml"
    file.write_text(file.read_text().replace(f', password: "{PASSWORD}"', ""))
    assert code(shop, "plan", "--live") == "MZ050"  # a server that needs no secret
    monkeypatch.setenv("PGPASSWORD", "of-production")
    refused = of_sink(mzplan(shop, "validate", "--live", "--json"))
    assert refused["code"] == "MZ107" and "${machine:PGPASSWORD}" in refused["hint"]
    assert code(shop, "validate", "--live", "--send-secrets") == "MZ050"


def test_secrets_go_where_the_committed_state_sends_them(shop: Path, port: int) -> None:
    committed(shop)
    assert code(shop, "validate", "--live") == "MZ050"
    for change in ({"host": "localhost"}, {"password": "${env:HOME}"}, {"password": "${file:/etc/hostname}"}):
        pipeline(shop, port, **change)
        for command in LOOKING:
            assert code(shop, *command) == "MZ107", change


@pytest.mark.programs
@pytest.mark.parametrize("outside", [False, True], ids=["named by the project", "named from outside"])
def test_a_state_that_git_tracks_allows_no_secret(shop: Path, outside: bool) -> None:
    committed(shop)
    config = shop.parent / "state.yaml"
    config.write_text("state: {backend: local, path: shop/state}\n")
    command = ("validate", "--live", *(("--state-config", str(config)) if outside else ()))
    git = ("git", "-C", str(shop.parent))
    subprocess.run([*git, "init", "-q"], check=True)
    assert code(shop, *command) == "MZ050"
    subprocess.run([*git, "add", "-f", "shop/state/mzplan.state.json"], check=True)
    refused = of_sink(mzplan(shop, *command, "--json"))
    assert refused["code"] == "MZ107" and "git tracks it" in refused["detail"]


@pytest.mark.parametrize("name", [".hg", ".svn"])
def test_a_state_in_another_work_tree_allows_no_secret(shop: Path, name: str) -> None:
    committed(shop)
    assert code(shop, "validate", "--live") == "MZ050"
    (shop.parent / name).mkdir()
    refused = of_sink(mzplan(shop, "validate", "--live", "--json"))
    assert refused["code"] == "MZ107" and "hg, jj or svn" in refused["detail"]


def test_a_state_of_another_user_allows_no_secret(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(shop)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused = of_sink(mzplan(shop, "validate", "--live", "--json"))
    assert refused["code"] == "MZ107" and "another user" in refused["detail"]


def test_a_state_on_a_server_counts_only_with_a_state_config(shop: Path) -> None:
    committed(shop)
    state = open_project(str(shop)).store.read_state()
    elsewhere = "state: {backend: postgres, host: evil, database: d, user: u}\n"
    file, config = shop / "mzplan.yaml", shop.parent / "state.yaml"
    file.write_text(file.read_text() + elsewhere)
    config.write_text(elsewhere)
    named = read_only_guard(open_project(str(shop)), state, None, "error")
    assert isinstance(named, CommittedFlowsGuard) and not named.committed_flows
    assert "--state-config" in named.reason
    confirmed = read_only_guard(open_project(str(shop), state_config=str(config)), state, None, "error")
    assert isinstance(confirmed, CommittedFlowsGuard)
    assert confirmed.committed_flows == flows_of_state(state) != frozenset()


@pytest.mark.parametrize("command", [*LOOKING, ("apply", "--auto-approve", "--live")])
def test_nothing_widens_a_policy(shop: Path, command: tuple[str, ...], monkeypatch: Any) -> None:
    empty = shop.parent / "empty.toml"
    empty.write_text("")
    assert code(shop, *command, "--policy", str(empty)) == "MZ106"
    monkeypatch.setenv("MZPLAN_POLICY", str(empty))
    assert code(shop, *command) == "MZ106"
    if command[0] != "apply":
        assert mzplan(shop, *command, "--send-secrets").code == 64
        assert code(shop, *command, "--send-secrets", "--policy", "") == "MZ050"
    inside = shop / "policy.toml"
    inside.write_text(f'[[allow]]\nreferences = ["{PASSWORD}"]\nhosts = ["*"]\n')
    monkeypatch.chdir(shop)
    assert mzplan(shop, *command, "--policy", "policy.toml", "--json").error()["code"] == "MZ105"
    link = shop.parent / "link.toml"
    link.symlink_to(inside)
    assert mzplan(shop, *command, "--policy", str(link), "--json").error()["code"] == "MZ105"
    assert not (shop / "state" / "mzplan.state.json").exists()


def test_apply_sends_secrets_where_the_approved_files_do(shop: Path) -> None:
    ran = mzplan(shop, "apply", "--auto-approve", "--live", "--json")
    assert ran.code == 1 and of_sink(ran)["code"] == "MZ050"


def test_alter_sends_secrets_as_plan_apply_and_validate_do(shop: Path, port: int) -> None:
    committed(shop)
    moved = "ALTER CONNECTION pg SET HOST 'localhost'"
    looked = of_sink(mzplan(shop, "alter", moved, "--dry-run", "--live", "--json"))
    assert looked["code"] == "MZ107" and looked["severity"] == "warning"
    assert code(shop, "alter", moved, "--dry-run", "--live", "--send-secrets") == "MZ050"
    assert code(shop, "alter", moved, "--auto-approve", "--live") == "MZ050"  # it is about to commit it
    pipeline(shop, port, "localhost")
    assert code(shop, "alter", "VALIDATE CONNECTION pg") == "MZ107"
    assert code(shop, "alter", "VALIDATE CONNECTION pg", "--send-secrets") == "MZ050"


# --- a policy and servers that need no secret


def state() -> Any:
    parts = (kafka(brokers=["k1:9092"]), postgres(host="db"), source(), sink(), console("shown", "orders"))
    return commit(project(*parts))


def test_a_proposal_reaches_only_servers_of_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    found = state()
    query = describe(found.resources[at("source.orders")], found.resources)
    with pytest.raises(MzplanError) as refused:
        resolve(query, GuardedSecrets(".", read_policy(str(path))).proposed(), ".")
    (problem,) = refused.value.diagnostics
    assert problem.code == "MZ106" and "k1:9092" in problem.summary
    path.write_text(problem.hint[problem.hint.index("[[allow") :])
    assert resolve(query, GuardedSecrets(".", read_policy(str(path))).proposed(), ".")
    empty = Policy(path="p", allowed=())
    assert resolve(query, GuardedSecrets(".", empty), ".")  # what is committed goes on


@pytest.mark.parametrize("host", ["/run/db.internal", "@db.internal", "x y.db.internal", ""])
def test_a_socket_is_allowed_only_by_its_own_name(host: str) -> None:
    wide = Allowance(references=(PASSWORD,), hosts=("*", "*.internal", "*db.internal:5432"))
    assert not wide.covers_server(f"{host}:5432")
    assert Allowance(references=(PASSWORD,), hosts=(f"{host}:5432",)).covers_server(f"{host}:5432")
    for plain in ("db.internal:5432", "10.0.0.1:5432", "::1:5432", "[::1]:5432"):
        assert Allowance(references=(PASSWORD,), hosts=("*",)).covers_server(plain)


def test_a_policy_ignores_the_protocol_of_a_broker() -> None:
    parts = (kafka(brokers=["SASL_SSL://k1.internal:9092"]), source())
    found = commit(project(*parts))
    query = describe(found.resources[at("source.orders")], found.resources)
    allowed = Policy(path="p", allowed=(Allowance(references=(), hosts=("*.internal:9092",)),))
    assert resolve(query, GuardedSecrets(".", allowed).proposed(), ".")
