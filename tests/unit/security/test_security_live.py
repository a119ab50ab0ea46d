"""`--live` from here sends secrets only where the committed state, a policy or its user lets them go
(docs/security.md)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.admission import flows_of_state
from mzplan.operations.local_checks import read_only_guard
from mzplan.operations.project import open_project
from mzplan.secrets.guards import CommittedFlowsGuard
from tests.unit.cli_runs import Ran, edit, mzplan, write

PIPELINE = """\
connections:
  here: {{type: files, path: data}}
  pg: {{type: postgres, host: {host}, port: 1, database: d, user: a, password: "{password}"}}
sources:
  orders: {{connection: here, path: inbox, format: {{type: json, schema: "id BIGINT"}}}}
sinks:
  orders_pg: {{from: orders, connection: pg, table: public.orders}}
"""
PASSWORD = "${env:LIVE_TEST_PASSWORD}"
LOOKING = (("plan", "--live"), ("validate", "--live"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a CI job, whose database does not answer, of an instance without a runner."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("LIVE_TEST_PASSWORD", "of-production")
    monkeypatch.delenv("MZPLAN_POLICY", raising=False)
    return pipeline(write(tmp_path / "shop", "cluster"))


def pipeline(folder: Path, host: str = "127.0.0.1", password: str = PASSWORD) -> Path:
    (folder / "pipeline.yaml").write_text(PIPELINE.format(host=host, password=password))
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
    edit(shop, f', password: "{PASSWORD}"', "")
    assert code(shop, "plan", "--live") == "MZ050"  # a server that needs no secret
    monkeypatch.setenv("PGPASSWORD", "of-production")
    refused = of_sink(mzplan(shop, "validate", "--live", "--json"))
    assert refused["code"] == "MZ107" and "${machine:PGPASSWORD}" in refused["hint"]
    assert code(shop, "validate", "--live", "--send-secrets") == "MZ050"


def test_secrets_go_where_the_committed_state_sends_them(shop: Path) -> None:
    committed(shop)
    assert code(shop, "validate", "--live") == "MZ050"
    for change in ({"host": "localhost"}, {"password": "${env:HOME}"}, {"password": "${file:/etc/hostname}"}):
        pipeline(shop, **change)
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


def test_a_state_of_another_user_or_work_tree_allows_no_secret(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(shop)
    assert code(shop, "validate", "--live") == "MZ050"
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        theirs = of_sink(mzplan(shop, "validate", "--live", "--json"))
    (shop.parent / ".svn").mkdir()
    refused = of_sink(mzplan(shop, "validate", "--live", "--json"))
    assert theirs["code"] == refused["code"] == "MZ107"
    assert "another user" in theirs["detail"] and "hg, jj or svn" in refused["detail"]


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


def test_alter_sends_secrets_as_plan_apply_and_validate_do(shop: Path) -> None:
    committed(shop)
    moved = "ALTER CONNECTION pg SET HOST 'localhost'"
    looked = of_sink(mzplan(shop, "alter", moved, "--dry-run", "--live", "--json"))
    assert looked["code"] == "MZ107" and looked["severity"] == "warning"
    assert code(shop, "alter", moved, "--dry-run", "--live", "--send-secrets") == "MZ050"
    assert code(shop, "alter", moved, "--auto-approve", "--live") == "MZ050"  # it is about to commit it
    pipeline(shop, "localhost")
    assert code(shop, "alter", "VALIDATE CONNECTION pg") == "MZ107"
    assert code(shop, "alter", "VALIDATE CONNECTION pg", "--send-secrets") == "MZ050"
