"""New, safer defaults apply to new connections; committed connections keep the old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from mzplan.connectors.postgres.client import connect, conninfo
from mzplan.host import network
from mzplan.host.network import is_loopback
from mzplan.store.backends import postgres
from tests.support import refusal
from tests.unit.cli_runs import PROJECT, apply, mzplan
from tests.unit.connectors.queries import linked

PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  pg: {type: postgres, host: %s, database: d, user: u, password: "${env:PW}"%s}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
sinks:
  out: {from: orders, connection: pg, table: public.orders, mode: append}
"""
RESTART = {"connection.pg": "restart", "sink.out": "restart"}
AS_BEFORE = ", cleartext_login: allow, tls: {mode: prefer}"  # what is recorded then is as an earlier one did


def write(folder: Path, more: str = "", host: str = "db.example") -> Path:
    (folder / "mzplan.yaml").write_text(PROJECT % "dry")
    (folder / "pipeline.yaml").write_text(PIPELINE % (host, more))
    return folder


def recorded(folder: Path, name: str = "pg") -> dict[str, Any]:
    state = json.loads((folder / "state" / "mzplan.state.json").read_text())
    return dict(state["resources"][f"connection.{name}"]["body"])


def planned(folder: Path, *more: str) -> tuple[dict[str, str], list[str]]:
    """Return the effect of each change by address, and the codes of the plan's diagnostics."""
    ran = mzplan(folder, "plan", "--json", *more)
    assert ran.code == 0, ran
    effects = {c["address"]: c["effect"] for c in ran.json()["changes"]}
    return effects, [d["code"] for d in ran.json()["diagnostics"]]


# The system's resolver may ask a server for `localhost.` and `db.localhost`.
HERE = (
    "localhost LocalHost 127.0.0.1 127.1.2.3 ::1 [::1] /var/run/postgresql localhost,::1,/var/run/postgresql"
)
ELSEWHERE = (
    "localhost. db.localhost db 10.0.0.1 localhost.example 127.0.0.1.example ${env:HOST} 0.0.0.0 a,localhost "
    "db.corp,b.localhost localhost,db.corp /tmp/x,db.corp localhost,"
)


def test_only_loopback_hosts_are_this_machine() -> None:
    assert [host for host in HERE.split() if not is_loopback(host)] == []
    assert [host for host in ["", *ELSEWHERE.split()] if is_loopback(host)] == []


def test_a_change_or_rename_of_a_committed_connection_keeps_its_defaults(tmp_path: Path) -> None:
    apply(write(tmp_path, AS_BEFORE))
    write(tmp_path, ", port: 6432")
    plan = tmp_path / "saved.plan"
    assert planned(tmp_path, "--out", str(plan)) == (RESTART, ["MZ116"])
    assert mzplan(tmp_path, "apply", str(plan), "--auto-approve").code == 0
    assert recorded(tmp_path)["port"] == 6432 and "tls" not in recorded(tmp_path)
    text = (PIPELINE % ("db.example", ", lifecycle: {moved_from: pg}")).replace("  pg: {", "  other: {")
    (tmp_path / "pipeline.yaml").write_text(text.replace("connection: pg,", "connection: other,"))
    assert planned(tmp_path)[1] == ["MZ116"]
    apply(tmp_path)
    assert "tls" not in recorded(tmp_path, "other")


def connected(host: str, **given: Any) -> dict[str, Any]:
    """Return libpq's options for a recorded body."""
    link = linked("postgres", host=host, database="d", user="u", **given)
    return dict(conninfo_to_dict(conninfo(link, "/project")))


def test_libpq_gets_the_recorded_tls_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = connected("db.example")
    assert before["sslmode"] == "prefer" and not {"require_auth", "sslrootcert"} & before.keys()
    never = connected("db.example", cleartext_login="never")
    assert never["sslmode"] == "prefer" and never["require_auth"] == "!password"
    now = connected("db.example", cleartext_login="never", tls={"mode": "verify-full"})
    assert "require_auth" not in now  # TLS is certain, and the server is the right one
    assert now["sslrootcert"] == (network.system_roots() or "")
    own = connected("db.example", tls={"mode": "verify-full", "ca": "ca.pem"})
    assert own["sslrootcert"] == "/project/ca.pem"
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").write_text("")
    assert "sslrootcert" not in connected("db.example", tls={"mode": "verify-full"})  # libpq takes it


@pytest.mark.parametrize(
    ("settings", "mode", "auth"),
    [
        ({"host": "db.example"}, "verify-full", None),
        ({"host": "db.example", "tls": {"mode": "prefer"}}, "prefer", "!password"),
        ({"host": "db.example", "tls": {"mode": "prefer"}, "cleartext_login": "allow"}, "prefer", None),
        ({"host": "localhost"}, "prefer", None),
    ],
)
def test_a_postgres_state_checks_certificates_by_default(
    settings: dict[str, Any], mode: str, auth: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(given: str, **_: Any) -> None:
        found.append(conninfo_to_dict(given))
        raise psycopg.OperationalError("certificate verify failed")

    found: list[Any] = []
    monkeypatch.setattr(postgres.BoundedConnection, "connect", refuse)
    backend = postgres.PostgresBackend({"backend": "postgres", "database": "d", **settings}, "/p", "shop")
    said = refusal(lambda: backend.read("x"))
    assert (found[0]["sslmode"], found[0].get("require_auth")) == (mode, auth)
    assert said.code == "MZ095" and ("state.tls.mode isn't set" in said.hint) == (mode == "verify-full")


def test_an_impossible_host_name_is_a_clear_error() -> None:
    settings = {"backend": "postgres", "database": "d", "user": "u", "host": "db..example"}
    backend = postgres.PostgresBackend(settings, "/p", "shop")
    said = refusal(lambda: backend.read("x"))
    assert said.code == "MZ095" and "a part of it is empty" in said.detail
    with pytest.raises(psycopg.OperationalError, match="host's name"):
        connect("host=db..example")
