"""`--live`: the queries' runner validates them, or this process does. Nothing changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.schema.description import Description
from tests.unit.cli_runner import following, rejecting
from tests.unit.cli_runs import PROJECT, Ran, apply, mzplan, write

# Nothing listens on port 9.
SERVERS = """\
connections:
  k: {type: kafka, brokers: ["127.0.0.1:9"]}
  pg: {type: postgres, host: 127.0.0.1, port: 9, database: d, user: a, password: "${file:secrets/pg}"}
  here: {type: files, path: data}
  spare: {type: files, path: spare}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
  lines: {connection: here, path: inbox, format: {type: json, schema: "id BIGINT"}}
sinks:
  orders_pg: {from: orders, connection: pg, table: public.orders}
  out: {type: console, from: orders}
"""


APPROVED = ("--auto-approve", "--wait", "0s")
UNVALIDATED = (*APPROVED, "--no-live")


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """A project whose servers don't exist, on an instance without a runner."""
    write(tmp_path, "cluster")
    (tmp_path / "pipeline.yaml").write_text(SERVERS)
    return tmp_path


def commit(folder: Path, *command: str) -> None:
    """Commit without a validation, and without a runner that starts the queries."""
    ran = mzplan(folder, *(command or ("apply",)), *UNVALIDATED)
    assert ran.code == 8, ran


def codes(ran: Ran) -> dict[str, str]:
    return {a: d["code"] for d in ran.json()["diagnostics"] for a in d.get("addresses", [d["address"]])}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the pipeline and the store's files, without the files that a runner writes."""
    own = ("status", "leases", "events", "journal")
    kept = [p for p in (folder / "state").rglob("*") if p.is_file() and p.parent.name not in own]
    kept = [p for p in kept if p.name not in (".mutex", "lock")]
    return {str(p): p.read_bytes() for p in (folder / "pipeline.yaml", *kept)}


def unvalidated(ran: Ran) -> list[str]:
    """Return the connections that --no-live reports as not validated."""
    said = "notice: Not validated before the commit, because no runner of instance local is alive: "
    return [line.removeprefix(said) for line in ran.err.splitlines() if line.startswith(said)]


# --- by the runner


def test_only_live_commands_ask_the_runner_and_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, "cluster")
    with following(tmp_path) as executor:
        apply(tmp_path)
        write(tmp_path, "cluster", broker="b")
        before = files_of(tmp_path)
        executor.check_result, asked = rejecting("source.orders")
        assert mzplan(tmp_path, "plan").code == mzplan(tmp_path, "plan", "--no-live").code == 0
        assert asked == []
        ran = mzplan(tmp_path, "plan", "--live", "--json")
        assert ran.code == 1
        assert asked == ["source.orders"]  # queries downstream don't change
        assert [c["address"] for c in ran.json()["changes"]] == ["connection.k", "source.orders"]
        assert codes(ran) == {"source.orders": "MZ050"}
        executor.check_result = lambda description: CheckResult()
        assert mzplan(tmp_path, "plan", "--live", "--detailed-exitcode").code == 2
        # `validate --live` asks about every query.
        executor.check_result, asked = rejecting()
        ran = mzplan(tmp_path, "validate", "--live", "--json")
        assert ran.code == 0
        assert sorted(asked) == ["sink.few", "sink.out", "source.orders"]
        assert ran.json()["connections"] == [{"address": "connection.k", "queries": ["source.orders"]}]
        executor.check_result, _ = rejecting("sink.out", "source.orders")
        ran = mzplan(tmp_path, "validate", "--live", "--json")
        assert ran.code == 1 and codes(ran) == {"sink.out": "MZ050", "source.orders": "MZ050"}
        assert files_of(tmp_path) == before
        assert len([what for what, _ in executor.log if what == "start"]) == 3


# --- from here


def test_without_a_runner_live_checks_every_server_from_here(
    servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where Spark isn't installed. The paths and secrets are those of the project."""
    for name in [n for n in sys.modules if n.partition(".")[0] in ("pyspark", "pandas")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    ran = mzplan(servers, "validate", "--live", "--send-secrets", "--json")
    found = {d["address"]: d for d in ran.json()["diagnostics"]}
    assert found["sink.orders_pg"]["code"] == "MZ056"
    assert "${file:secrets/pg}" in found["sink.orders_pg"]["summary"]
    assert found["source.lines"]["code"] == "MZ057"
    assert str(servers / "data" / "inbox") in json.dumps(found["source.lines"])
    (servers / "secrets").mkdir()
    (servers / "secrets" / "pg").write_text("geheim\n")
    (servers / "data" / "inbox").mkdir(parents=True)
    ran = mzplan(servers, "apply", "--auto-approve", "--live", "--json")
    assert ran.code == 1
    assert codes(ran) == {"source.orders": "MZ050", "sink.orders_pg": "MZ050"}
    assert "geheim" not in ran.out + ran.err
    assert "from here: no runner of instance local is alive" in ran.err
    assert not (servers / "state" / "mzplan.state.json").exists()


def test_a_defect_in_one_check_hides_no_other_result(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mzplan.connectors import checks

    real: Callable[..., Any] = checks.check_description

    def check(description: Description, *arguments: Any, **options: Any) -> Any:
        if description.address.name == "lines":
            raise ZeroDivisionError("a secret perhaps")
        return real(description, *arguments, **options)

    monkeypatch.setattr(checks, "check_description", check)
    ran = mzplan(servers, "plan", "--live", "--json")
    assert codes(ran)["source.lines"] == "MZ064" and codes(ran)["source.orders"] == "MZ050"
    assert "a secret perhaps" not in ran.out + ran.err


def test_without_a_runner_apply_commits_nothing_unvalidated(servers: Path) -> None:
    assert mzplan(servers, "plan").code == 0
    ran = mzplan(servers, "apply", *APPROVED)
    assert ran.code == 7 and "error[MZ149]" in ran.err and "connection.spare" not in ran.err
    used = [line.strip() for line in ran.err.splitlines() if ", used by " in line]
    users = {"here": "source.lines", "k": "source.orders", "pg": "sink.orders_pg"}
    assert used == [f"connection.{name}, used by {user}" for name, user in users.items()]
    assert not (servers / "state" / "mzplan.state.json").exists()
    ran = mzplan(servers, "apply", *UNVALIDATED, "--json")
    assert ran.code == 8  # the runner will validate before it acts
    assert "no runner is alive (start one with `mzplan run --inst" in mzplan(servers, "status").out
    assert unvalidated(ran) == ["; ".join(used)]
    states = {c["status"] for c in ran.json()["changes"] if not c["address"].startswith("connection")}
    assert states == {"pending"}


def test_a_change_that_starts_nothing_needs_no_validation(servers: Path) -> None:
    commit(servers)
    describe = ("alter", "ALTER CONNECTION pg SET DESCRIPTION = 'x'")
    assert mzplan(servers, *describe, *APPROVED).code == 8  # committed
    times = ("--from", "2026-01-01T00:00:00Z", "--to", "2026-01-02T00:00:00Z")
    commit(servers, "backfill", "source.orders", *times)
    assert mzplan(servers, "backfill", "source.orders", "--cancel", *APPROVED).code == 8


def test_an_unused_connection_is_validated_before_it_is_committed(servers: Path) -> None:
    lone = "connections: {k: {type: postgres, host: 127.0.0.1, port: 9, database: d, user: a}}\n"
    (servers / "pipeline.yaml").write_text(lone)
    ran = mzplan(servers, "apply", *APPROVED)
    assert ran.code == 7 and "error[MZ149]" in ran.err and "connection.k, used by no running query" in ran.err
    ran = mzplan(servers, "apply", *UNVALIDATED)
    assert ran.code == 0 and unvalidated(ran) == ["connection.k, used by no running query"]
    changed = ("alter", "ALTER CONNECTION k SET PORT = 1", "--auto-approve", "--json")
    assert mzplan(servers, *changed).error()["code"] == "MZ149"
    (servers / "mzplan.yaml").write_text(PROJECT % "embedded")
    assert mzplan(servers, "apply", *UNVALIDATED).code == 0
    # The runner would be started here, so this process has the same network and values.
    ran = mzplan(servers, *changed)
    assert ran.code == 1 and ran.error()["code"] == "MZ050"
    assert (servers / "pipeline.yaml").read_text() == lone
    assert mzplan(servers, *changed, "--no-live").code == 0
    (servers / "pipeline.yaml").write_text(lone)
    ran = mzplan(servers, "apply", "--auto-approve", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ050"


def test_a_connection_of_paused_queries_is_validated_by_itself(servers: Path) -> None:
    commit(servers)
    assert mzplan(servers, "pause", "source.orders", *APPROVED).code == 8
    before = files_of(servers)
    statement = "ALTER CONNECTION k SET BROKERS = ('127.0.0.1:1')"
    ran = mzplan(servers, "alter", statement, *APPROVED)
    assert ran.code == 7 and "connection.k, used by no running query" in ran.err
    ran = mzplan(servers, "alter", f"{statement} WITH (VALIDATE)", *APPROVED, "--json")
    assert ran.code == 1 and "MZ050" in codes(ran).values(), ran
    assert files_of(servers) == before


_STARTING: dict[str, tuple[str, ...]] = {
    "apply": ("apply",),
    "apply PLANFILE": ("apply", "saved.plan"),
    "alter": ("alter", "ALTER CONNECTION pg SET PORT = 1"),
    "resume": ("resume", "sink.orders_pg"),
    "restart": ("restart", "sink.orders_pg"),
    "state rollback": ("state", "rollback"),
    "state push": ("state", "push", "pulled.json", "--force"),
    "import": ("import", "sink.orders_pg", "--id", "given"),
    "replay": ("replay", "sink.orders_pg", "--missing"),
}
_OPTIONS: dict[str, tuple[str, ...]] = {"apply PLANFILE": ("--wait", "0s"), "state push": ()}


def starting(folder: Path, name: str) -> tuple[str, ...]:
    """Prepare the project, and return a command that starts a query."""
    pipeline = folder / "pipeline.yaml"
    commit(folder)
    assert mzplan(folder, "state", "pull", "--out", str(folder / "pulled.json")).code == 0
    if name == "resume":
        assert mzplan(folder, "pause", "sink.orders_pg", *APPROVED).code == 8
    elif name.startswith("state"):
        commit(folder, *_STARTING["alter"])
    elif name == "import":
        for kind in ("checkpoints", "collections"):
            (folder / "warehouse" / kind / "given" / "g1").mkdir(parents=True)
        assert mzplan(folder, "state", "rm", "sink.orders_pg").code == 0
    elif name.startswith("apply"):
        pipeline.write_text(pipeline.read_text().replace("user: a", "user: b"))
        assert mzplan(folder, "plan", "--out", str(folder / "saved.plan")).code == 0
    files = ("saved.plan", "pulled.json")
    command = tuple(str(folder / one) if one in files else one for one in _STARTING[name])
    return (*command, *_OPTIONS.get(name, APPROVED))


@pytest.mark.parametrize("name", _STARTING)
def test_a_command_that_starts_a_query_validates_it_before_the_commit(servers: Path, name: str) -> None:
    command = starting(servers, name)
    before = files_of(servers)

    # No runner is alive, and none of a cluster can be started from here.
    ran = mzplan(servers, *command, "--json")
    assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ149"}, ran
    assert files_of(servers) == before

    if name in ("apply", "alter", "replay"):
        # --live validates from here, where nothing listens and the secret is missing.
        ran = mzplan(servers, *command, "--live", "--json")
        assert ran.code == 1 and set(codes(ran).values()) <= {"MZ050", "MZ056"}, ran
        assert files_of(servers) == before

    # The runner refuses it.
    with following(servers) as executor:
        executor.check_result, asked = rejecting("sink.orders_pg", "source.orders", code="MZ051")
        ran = mzplan(servers, *command, "--json")
    assert ran.code == 1 and set(codes(ran).values()) == {"MZ051"}, ran
    assert asked and files_of(servers) == before

    # --no-live commits anyway, and lists the connections that were not validated.
    ran = mzplan(servers, *command, "--no-live")
    assert ran.code == (0 if name == "state push" else 8) and unvalidated(ran), ran


def test_a_rename_or_a_push_into_an_empty_store_is_validated_by_a_live_runner(servers: Path) -> None:
    commit(servers)
    pulled, state = servers / "pulled.json", servers / "state"
    assert mzplan(servers, "state", "pull", "--out", str(pulled)).code == 0
    before = files_of(servers)
    renamed = ("state", "mv", "sink.orders_pg", "sink.renamed", "--json")
    with following(servers) as executor:
        executor.check_result, _ = rejecting("sink.renamed", code="MZ051")
        ran = mzplan(servers, *renamed)
    assert ran.code == 1 and codes(ran) == {"sink.renamed": "MZ051"}
    assert files_of(servers) == before
    assert mzplan(servers, *renamed).code == 0  # no runner is alive, so this starts nothing
    push = ("state", "push", str(pulled), "--json")
    state.rename(servers / "former")
    with following(servers) as executor:
        executor.check_result, asked = rejecting("sink.orders_pg", code="MZ051")
        ran = mzplan(servers, *push)
    assert ran.code == 1 and codes(ran) == {"sink.orders_pg": "MZ051"}
    assert set(asked) == {"sink.orders_pg", "sink.out", "source.lines", "source.orders"}
    assert not (state / "mzplan.state.json").exists()
    assert mzplan(servers, *push).code == 0  # no runner is alive, so this starts nothing


def test_a_dry_instance_contacts_no_server(tmp_path: Path) -> None:
    write(tmp_path)
    ran = mzplan(tmp_path, "validate", "--live", "-v")
    assert ran.code == 7 and "Valid" not in ran.out and "error[MZ143]" in ran.err
    why = "Not reached: connection.k for source.orders: its instance local is dry, and contacts no server"
    assert why in ran.out
    ran = mzplan(tmp_path, "validate", "--live", "--json")
    assert ran.code == 7 and ran.error()["code"] == "MZ143"
    assert [one["address"] for one in ran.json()["connections"]] == ["connection.k"]
    assert mzplan(tmp_path, "plan", "--live").code == 0


def test_validate_live_contacts_unused_connections(servers: Path) -> None:
    (servers / "pipeline.yaml").write_text(
        "connections:\n  spare: {type: files, path: spare}\n"
        "  k: {type: kafka, brokers: ['127.0.0.1:9']}\n"
        "  r: {type: schema-registry, url: 'http://127.0.0.1:9'}\n"
    )
    ran = mzplan(servers, "validate", "--live", "--json")
    assert ran.code == 1
    assert codes(ran).keys() == {"connection.k", "connection.r"} and codes(ran)["connection.k"] == "MZ050"
    (servers / "pipeline.yaml").write_text("connections:\n  spare: {type: files, path: spare}\n")
    ran = mzplan(servers, "validate", "--live")
    assert ran.code == 0 and "Not reached: connection.spare, because nothing uses it" in ran.out


def test_a_check_from_here_compares_a_checkpoint_on_this_machine(
    servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mzplan.connectors.api.queries import Probe
    from mzplan.connectors.kafka.probe import KafkaProbe

    commit(write(servers, "cluster"))
    state = json.loads((servers / "state" / "mzplan.state.json").read_text())
    checkpoint = servers / "warehouse" / "checkpoints" / state["resources"]["source.orders"]["id"] / "g1"
    (checkpoint / "spark" / "offsets").mkdir(parents=True)
    (checkpoint / "spark" / "offsets" / "0").write_text("x")
    found = {"type": "kafka", "cluster_id": "one", "topic": "orders", "topic_id": None, "partitions": 1}
    (checkpoint / "upstream.json").write_text(json.dumps({"format_version": 1, "upstream": found}))
    monkeypatch.setattr(
        KafkaProbe, "probe", lambda self, query: Probe(upstream={**found, "cluster_id": "two"})
    )
    ran = mzplan(servers, "validate", "--live", "--json")
    assert ran.code == 7 and codes(ran) == {"source.orders": "MZ043"}
