"""Write access to the store, or to the warehouse, is not the runner's secrets (docs/security.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors import admission
from mzplan.connectors.admission import GuardedSecrets, committed_guard, flows_of, flows_of_state
from mzplan.connectors.api.connector import Connector
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.checks import check_description
from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.connectors.releases import release_upstream
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import ProjectSettings, Resource
from mzplan.model.state import State
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.wake import WakeListener, send_wake
from mzplan.schema.conformity import fault_of
from mzplan.schema.description import Description, as_description, describe
from mzplan.secrets.guards import CommittedGuard
from mzplan.secrets.policy import Allowance, Flow, Guard, Policy, SecretValues, read_policy
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from tests import support
from tests.runners import runner_in_memory
from tests.unit.cli_runs import mzplan, write
from tests.unit.runner.test_runner import World as RunnerWorld
from tests.unit.small_projects import at, commit, kafka, postgres, project, resource, sink, source

PASSWORD = "${env:P}"
VALUE = "s3cret-of-production"
ENVIRONMENT = {"P": VALUE, "AWS_SECRET_ACCESS_KEY": "aws-of-production"}
ORDERS, ORDERS_PG = at("source.orders"), at("sink.orders_pg")


def shop(*more: Resource, state: State | None = None, **database: Any) -> State:
    pg = postgres(**{"password": PASSWORD, **database})
    parts = (kafka(), pg, source(), sink(), *more)
    return commit(project(*{one.address: one for one in parts}.values()), state)


def query(state: State, address: Address = ORDERS_PG) -> Description:
    return describe(state.resources[address], state.resources)


def moved(description: Description, **body: Any) -> Description:
    """With another body of its connection."""
    link = description.connections["connection"]
    return replace(description, connections={"connection": replace(link, body={**link.body, **body})})


def problem_of(call: Callable[[], object]) -> Diagnostic:
    found = support.refusal(call)
    assert VALUE not in str(found)
    return found


def guarded(guard: Guard) -> GuardedSecrets:
    return GuardedSecrets(".", guard, ENVIRONMENT)


def policy(folder: Path, text: str) -> Policy:
    path = folder / "policy.toml"
    path.write_text(text)
    return read_policy(str(path))


def refusal(description: Description, secrets: Secrets) -> Diagnostic:
    return problem_of(lambda: password_of(description, secrets))


def password_of(description: Description, secrets: Secrets) -> Any:
    return resolve(description, secrets, ".").link.body["password"]


# --- where secrets go


def tunnel(name: str, host: str, key: str, **more: Any) -> Resource:
    body = {"type": "ssh-tunnel", "host": host, "user": "u", "known_hosts": "k", "private_key": key}
    return resource(f"connection.{name}", "ssh-tunnel", **{**body, **more})


TUNNELS = tunnel("door", "Door", "${env:D}"), tunnel("inner", "inner", "${env:I}", ssh_tunnel="door")


def test_a_secret_goes_to_its_connection_s_servers_and_their_tunnels() -> None:
    state = shop(*TUNNELS, host="db.internal", ssh_tunnel="inner")
    assert set(flows_of(query(state))) == {
        Flow(PASSWORD, ("door:22", "inner:22", "db.internal:5432")),
        Flow("${env:I}", ("door:22", "inner:22")),
        Flow("${env:D}", ("door:22",)),
    }


def test_secrets_go_to_each_of_several_servers() -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": PASSWORD}
    options = {"sasl.oauthbearer.token.endpoint.url": "https://Token.example/x"}
    security = {"protocol": "SASL_SSL", "sasl": sasl}
    cluster = kafka(brokers=["SASL_SSL://a:1,B:2", "c:3"], security=security, options=options)
    state = shop(cluster, host="h,evil", port=7)
    assert {flow.route for flow in flows_of(query(state))} == {("h:7",), ("evil:7",)}
    assert {flow.route for flow in flows_of(query(state, ORDERS))} == {
        ("a:1",), ("b:2",), ("c:3",), ("token.example:443",),
    }  # fmt: skip


def delta_lake(aws: str) -> tuple[Resource, Resource]:
    """A sink of a lake on S3 that an aws connection logs in to."""
    lake = resource("connection.lake", "files", type="files", path="s3://lake/x", aws=aws)
    body = {"type": "delta", "from": "orders", "connection": "lake", "path": "t"}
    return lake, resource("sink.lake", "delta", **body)


def test_a_shared_aws_login_goes_to_the_servers_of_its_users() -> None:
    key = {"access_key_id": "A", "secret_access_key": "${env:K}", "region": "eu-west-1"}
    role = {"role_arn": "arn:aws:iam::123456789012:role/r"}
    keyed = resource("connection.keyed", "aws", type="aws", endpoint="https://minio:9000", **key)
    machine = resource("connection.machine", "aws", type="aws", **role)
    state = shop(keyed, machine, *delta_lake("keyed"), kafka(brokers=["msk:9098"], aws="machine"))
    assert set(flows_of(query(state, at("sink.lake")))) == {Flow("${env:K}", ("minio:9000",))}
    machine_aws = {Flow("${machine:aws}", ("amazonaws.com:443",)), Flow("${machine:aws}", ("msk:9098",))}
    assert set(flows_of(query(state, ORDERS))) == machine_aws


def test_unnamed_servers_are_allowed_only_for_the_committed_connection(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path
) -> None:
    """A connector of another package may name no servers."""
    monkeypatch.setattr(admission, "find_connector", lambda type_: Connector(type=type_, servers=None))
    state = shop()
    secrets = guarded(committed_guard(store, state)).proposed()
    assert password_of(query(state), secrets) == VALUE
    asked = moved(query(state), user="another")
    found = problem_of(lambda: password_of(asked, secrets))
    assert "a server that its connector does not name" in found.summary
    assert password_of(asked, guarded(policy(tmp_path, found.hint.partition("\n")[2]))) == VALUE


# --- a policy


RULES = """
[[allow]]
references = ["${env:SHOP_*}", "${file:/run/secrets/*}"]
hosts = ["*.shop.internal:5432", "bastion"]
"""


@pytest.mark.parametrize(
    ("reference", "route", "allowed"),
    [
        ("${env:SHOP_PG}", ("db.shop.internal:5432",), True),
        ("${env:SHOP_PG}", ("bastion:22", "db.shop.internal:5432"), True),
        ("${file:/run/secrets/pg}", ("bastion:2222",), True),
        ("${file:/run/secrets/deeper/pg}", ("bastion:22",), False),
        ("${env:SHOP_PG}", ("db.shop.internal:5433",), False),
        ("${env:SHOP_PG}", ("evil:22", "db.shop.internal:5432"), False),
        ("${env:SHOP_PG}", ("?0123",), False),
        ("${env:HOME}", ("bastion:22",), False),
        ("${machine:aws}", ("amazonaws.com:443",), False),
    ],
)
def test_a_policy_allows_what_it_says_and_its_refusal_says_what_to_add(
    tmp_path: Path, reference: str, route: tuple[str, ...], allowed: bool
) -> None:
    rules, flow = policy(tmp_path, RULES), Flow(reference, route)
    if allowed:
        rules.check("sink.x", [flow], proposed=False)
        return
    found = problem_of(lambda: rules.check("sink.x", [flow], proposed=True))
    assert found.code == "MZ106" and str(tmp_path) in found.detail and found.severity == "error"
    _, _, lines = found.hint.partition("\n")
    policy(tmp_path, RULES + lines).check("sink.x", [flow], proposed=False)
    elsewhere = Flow(reference, ("other.example:1",))
    if "?0123" not in route:  # servers that are not known are allowed by all of them alone
        problem_of(lambda: policy(tmp_path, RULES + lines).check("sink.x", [elsewhere], proposed=False))


@pytest.mark.parametrize("name", ["/run/secrets/x/../pg", "../pg"])
def test_a_policy_allows_no_path_with_dots(tmp_path: Path, name: str) -> None:
    flow = Flow(f"${{file:{name}}}", ("bastion:22",))
    found = problem_of(lambda: policy(tmp_path, RULES).check("sink.x", [flow], proposed=False))
    assert found.code == "MZ106" and "`..`" in found.detail and "allow]]" not in found.hint
    rule = f"[[allow]]\nreferences = ['{flow.reference}']\nhosts = ['bastion']\n"
    assert problem_of(lambda: policy(tmp_path, rule)).code == "MZ105"


def test_under_a_policy_a_file_of_the_project_is_behind_no_link(tmp_path: Path) -> None:
    for folder, text in (("project/k", "allowed"), ("private/d", "private")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pg").write_text(text)
    (tmp_path / "private/pg").write_text("private")
    (tmp_path / "project/k/link").symlink_to(tmp_path / "private/d")
    (tmp_path / "project/k/linked").symlink_to(tmp_path / "private/pg")
    secrets = GuardedSecrets(str(tmp_path / "project"), policy(tmp_path, ""))
    assert secrets.resolve("${file:k/pg}") == secrets.proposed().resolve("${file:./k//pg}") == "allowed"
    for name in ("k/link/pg", "k/linked", "k", "k/link/../pg", "../private/pg", "k/missing", "k/\0"):
        found = problem_of(partial(secrets.resolve, f"${{file:{name}}}"))
        assert found.code in ("MZ103", "MZ056")
    assert secrets.resolve(f"${{file:{tmp_path}/project/k/linked}}") == "private"  # as Kubernetes mounts


def test_an_invalid_or_missing_policy_is_refused(tmp_path: Path) -> None:
    entry = "[[allow]]\nreferences = "
    for text in ("allow = 1", "[[allow]", f"{entry}['${{env:A}}']", f"{entry}['A']\nhosts = ['h']"):
        assert problem_of(partial(policy, tmp_path, text)).code == "MZ105"
    assert problem_of(lambda: read_policy(str(tmp_path / "none.toml"))).code == "MZ105"


def test_nothing_in_the_state_widens_a_policy(tmp_path: Path) -> None:
    allowed = policy(tmp_path, f'[[allow]]\nreferences = ["{PASSWORD}"]\nhosts = ["h:5432"]')
    state, secrets = shop(), guarded(allowed)
    assert password_of(query(state), secrets) == VALUE
    for change in ({"host": "evil"}, {"port": 1}, {"ssh_tunnel": "door"}, {"password": "${env:Q}"}):
        asked = query(shop(*TUNNELS, **change))
        assert refusal(asked, secrets).code == refusal(asked, secrets.proposed()).code == "MZ106"


def test_a_proposal_reaches_only_servers_of_the_policy(tmp_path: Path) -> None:
    orders, none = query(shop(), ORDERS), policy(tmp_path, "")
    found = problem_of(lambda: resolve(orders, guarded(none).proposed(), "."))
    assert found.code == "MZ106" and "a:9092" in found.summary
    allowed = policy(tmp_path, found.hint.partition("\n")[2])
    assert resolve(orders, guarded(allowed).proposed(), ".")
    assert resolve(orders, guarded(none), ".")  # what is committed goes on


@pytest.mark.parametrize("host", ["/run/db.internal", "@db.internal", "x y.db.internal", ""])
def test_a_socket_is_allowed_only_by_its_own_name(host: str) -> None:
    wide = Allowance(references=(PASSWORD,), hosts=("*", "*.internal", "*db.internal:5432"))
    assert not wide.covers_server(f"{host}:5432")
    assert Allowance(references=(PASSWORD,), hosts=(f"{host}:5432",)).covers_server(f"{host}:5432")
    for plain in ("db.internal:5432", "10.0.0.1:5432", "::1:5432", "[::1]:5432"):
        assert Allowance(references=(PASSWORD,), hosts=("*",)).covers_server(plain)


def test_a_runner_does_not_start_without_the_policy_that_it_is_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, none = write(tmp_path), str(tmp_path / "none.toml")
    commands: tuple[tuple[str, ...], ...] = (("run", "--instance", "local"), ("up",))
    found = [mzplan(folder, *command, "--policy", none, "--json") for command in commands]
    monkeypatch.setenv("MZPLAN_POLICY", none)
    found += [mzplan(folder, *command, "--json") for command in commands]
    assert [(ran.code, ran.error()["code"]) for ran in found] == [(1, "MZ105")] * 4
    assert not (folder / "state" / "leases").exists()


# --- without one


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(LocalBackend(tmp_path / "state"), "shop")


def test_without_a_policy_secrets_go_where_the_committed_state_sends_them(store: Store) -> None:
    state = shop()
    secrets = guarded(committed_guard(store, state))
    assert password_of(query(state), secrets.proposed()) == VALUE
    for change in ({"host": "evil"}, {"password": "${file:/etc/shadow}"}, {"user": "${env:HOME}"}):
        asked = moved(query(state), **change)
        for one, severity in ((secrets.proposed(), "warning"), (secrets, "error")):
            found = refusal(asked, one)
            assert (found.code, found.severity) == ("MZ107", severity)


def test_a_rollback_may_use_earlier_servers_but_a_proposal_may_not(store: Store) -> None:
    first = replace(shop(), lineage="l")
    store.commit(first, State(project="shop"))
    second = shop(state=first, host="new")
    store.commit(second, first)
    secrets = guarded(committed_guard(store, second))
    assert password_of(query(first), secrets) == VALUE
    assert problem_of(lambda: password_of(query(first), secrets.proposed())).code == "MZ107"


def test_the_machine_s_own_login_goes_only_where_the_committed_state_sends_it(store: Store) -> None:
    """Who writes an aws connection without a key, but an endpoint, would be sent a session token."""
    evil = resource("connection.evil", "aws", type="aws", endpoint="https://evil")
    secrets = guarded(committed_guard(store, shop())).proposed()
    lake = query(shop(evil, *delta_lake("evil")), at("sink.lake"))
    found = problem_of(lambda: resolve(lake, secrets, "."))
    assert "${machine:aws}" in found.summary and "evil:443" in found.summary


# --- what is not right by the schemas


def with_body(**body: Any) -> Callable[[Description], Description]:
    return lambda d: replace(d, body={**d.body, **body})


def of_source(body: dict[str, Any] | None = None, **connection: Any) -> Callable[[Description], Description]:
    """The source of the sink, with another body and a connection with more properties."""
    return lambda _: moved(with_body(**(body or {}))(query(shop(), ORDERS)), **connection)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_body(tabel="t"), "unknown key tabel"),
        (lambda d: moved(d, host="evil\0.shop.internal"), "connection.pg.host: a wrong value"),
        (lambda d: replace(d, type="../../etc"), "is not a type of a sink"),
        (lambda d: replace(d, reads={"orders": replace(d.rows_of, body={"topic": 1})}), "source.orders"),  # type: ignore[dict-item]
        (of_source(options={"sasl.jaas.config": "evil.Jndi"}), "sasl.jaas.config can't be set"),
        # Kafka's Java client would run a provider to read the runner's environment.
        (of_source(options={"config.providers": "1", "client.id": "${1:P}"}), "config.providers can"),
        (of_source({"format": {"type": "json", "schema": "id BIGINT; DROP TABLE"}}), "is not Spark DDL"),
    ],
)  # fmt: skip
def test_a_runner_checks_each_description_against_the_schemas(
    store: Store, change: Callable[[Description], Description], says: str
) -> None:
    description = change(query(shop()))
    assert fault_of(query(shop())) == fault_of(query(shop(), ORDERS)) == ""
    secrets = guarded(committed_guard(store, shop()))
    found = check_description(description, secrets.proposed(), directory=".")
    assert [d.code for d in found.diagnostics] == ["MZ108"] and says in found.diagnostics[0].detail


# --- in a runner


class World(RunnerWorld):
    """A runner whose executor resolves as Spark's does."""

    def __init__(self, folder: Path, guard: Guard):
        self.guard, self.sent = guard, list[Any]()
        super().__init__(folder)

    def new_runner(self) -> None:
        lease = self.store.leases.acquire("local", "test")
        assert lease is not None
        self.executor.check = self._check  # type: ignore[method-assign]
        committed = self.guard if isinstance(self.guard, CommittedGuard) else None
        values = ReceivedSecretValues(committed.grant) if committed else ReceivedSecretValues()
        self.runner = runner_in_memory(
            self.store, self.executor, lease, self.jobs, secrets=guarded(self.guard), secret_values=values
        )
        if committed:
            self.runner.on_commit = lambda state, _: committed.set_committed(flows_of_state(state))

    def _check(self, description: Description, secrets: Secrets) -> CheckResult:
        found = resolve(description, secrets, ".")
        self.sent += [one.body.get("password") for one in found.connections.values()]
        return CheckResult()

    def ask(self, *descriptions: Description) -> tuple[Diagnostic, ...]:
        proposal = self.store.proposals.make("local", descriptions)
        self.until(lambda: self.store.proposals.read_answer(proposal))
        answer = self.store.proposals.read_answer(proposal)
        assert answer is not None
        return answer.diagnostics


@pytest.fixture
def world(store: Store, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "state", committed_guard(store))
    yield made
    made.jobs.shutdown()


def test_a_proposal_sends_no_secret_elsewhere_and_a_commit_does(world: World) -> None:
    world.apply(shop())
    world.sent.clear()
    wanted = query(world.committed)
    found = world.ask(moved(wanted, host="evil"), with_body(tabel="t")(wanted))
    assert sorted((d.code, d.severity) for d in found) == [("MZ107", "warning"), ("MZ108", "error")]
    assert world.sent == []
    assert world.ask(wanted) == () and world.sent == [VALUE]
    status = world.apply(shop(state=world.committed, host="new"))
    assert {o.condition for o in status.observations.values()} == {"running"}


def test_with_a_policy_a_state_is_refused_for_the_query_that_it_forbids(tmp_path: Path) -> None:
    world = World(tmp_path / "state", policy(tmp_path, ""))
    status = world.apply(shop())
    found = status.observations[ORDERS_PG]
    assert (found.condition, found.error_code) == ("rejected", "MZ106") and "h:5432" in (found.error or "")
    assert status.observations[ORDERS].condition == "running" and status.secrets == {}
    assert VALUE not in world.sent


def test_an_unused_connection_gets_secrets_only_where_the_state_sends_them(store: Store) -> None:
    state = shop()
    pg = as_description(state.resources[at("connection.pg")], state.resources)
    secrets = guarded(committed_guard(store, state))
    secrets.proposed().permit(pg)
    elsewhere, odd = replace(pg, body={**pg.body, "host": "evil"}), replace(pg, body={})
    assert problem_of(lambda: secrets.proposed().permit(elsewhere)).code == "MZ107"
    assert problem_of(lambda: secrets.permit(odd)).code == "MZ108"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d, ""),
        (lambda d: moved(d, host="evil"), "MZ107"),
        (with_body(more=1), "MZ108"),
        (lambda d: replace(d, id="another"), "MZ063"),
    ],
)
def test_a_slot_is_released_only_where_the_committed_state_sends_its_secret(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, code: str
) -> None:
    released: list[Any] = []
    monkeypatch.setattr(PostgresSource, "release", lambda _, q: released.append(q.link.body["password"]))
    body = {"connection": "pg", "tables": ["public.t"], "schema": "id BIGINT", "key": ["id"]}
    state = shop(resource("source.users", "postgres", **body))
    description, warehouse = query(state, at("source.users")), str(tmp_path / "warehouse")
    Checkpoint.of(warehouse, *description.place).record_leaves(encode(change(description)))
    secrets = guarded(committed_guard(store, state))
    release = partial(release_upstream, warehouse, description.place, secrets, ".")
    if code:
        assert problem_of(release).code == code and released == []
    else:
        release()
        assert released == [VALUE]


def test_apply_allows_its_own_runner_what_it_is_about_to_commit(world: World, tmp_path: Path) -> None:
    """What the first `apply` of a connection does, over the socket of the runner that it has started."""
    path = tmp_path / ".mzplan" / "local.sock"
    path.parent.mkdir()
    listener = WakeListener(path, world.runner.secret_values.receive, threading.Event())
    listener.start()
    try:
        world.apply(commit(project(kafka(), source())))
        wanted = shop(state=world.committed)
        assert [d.code for d in world.ask(query(wanted))] == ["MZ107"]
        here = ProjectSettings(directory=str(tmp_path), project="p", warehouse="w", state={}, instances={})
        sent = SecretValues(values={"P": "handed over"}, flows=flows_of_state(wanted))
        assert send_wake(here, "local", sent) == 1
        assert world.ask(query(wanted)) == () and world.sent[-1] == "handed over"
        assert [d.code for d in world.ask(moved(query(wanted), host="evil"))] == ["MZ107"]
    finally:
        listener.close()
