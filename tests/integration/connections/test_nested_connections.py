"""Connections through connections, on real servers: only queries behind a broken SSH server fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from examples.servers import SshServer
from examples.servers.registry import SchemaRegistry
from tests.integration.orders_shop import OrdersShop
from tests.support import eventually, kafka_connection, orders_sink, orders_source

TABLES = ("far", "near", "plain")
BEHIND_OUTER = {"sink.ne_far", "sink.ne_near", "source.ne_s"}


class Nested:
    """A source, whose schema registry is behind the outer tunnel, into three sinks: `far` through the inner
    tunnel, which goes through the outer one; `near` through the outer one; `plain` through none. Names sort
    before and after what they refer to."""

    def __init__(self, shop: OrdersShop):
        self.shop, self.project, self.topic, self.rows = shop, shop.project, shop.topic("nested"), 0
        shop.create_tables(*TABLES)

    def declare(self, inner: SshServer, outer: SshServer, registry: SchemaRegistry) -> None:
        registry.register(f"{self.topic}-value", {"properties": {"id": {"type": "integer"}}})
        pg = self.shop.connection("").removeprefix("  : {").removesuffix("}\n")
        self.project.write(
            "nested",
            "connections:\n"
            + kafka_connection("ne_k", self.shop.kafka.bootstrap)
            + f"  ne_a_pg: {{{pg}, ssh_tunnel: ne_z_inner}}\n"
            + f"  ne_z_pg: {{{pg}, ssh_tunnel: ne_m_outer}}\n"
            + f"  ne_plain: {{{pg}}}\n"
            + f"  ne_reg: {{type: schema-registry, url: '{registry.url}', ssh_tunnel: ne_m_outer}}\n"
            + tunnel("ne_z_inner", inner, "    ssh_tunnel: ne_m_outer\n")
            + tunnel("ne_m_outer", outer)
            + "sources:\n" + orders_source("ne_s", "ne_k", self.topic)
            + "    schema_registry: ne_reg\n"
            + "sinks:\n" + orders_sink("ne_far", "ne_s", "ne_a_pg", "far")
            + orders_sink("ne_near", "ne_s", "ne_z_pg", "near")
            + orders_sink("ne_plain", "ne_s", "ne_plain", "plain"),
        )  # fmt: skip

    def alter(self, statement: str, *options: str, code: int = 0) -> Any:
        return self.project.json("alter", statement, "--auto-approve", *options, code=code)

    def more(self) -> None:
        """Ten more rows, into Kafka."""
        self.shop.produce(self.topic, self.rows, self.rows + 10)
        self.rows += 10

    def arrive(self, *tables: str) -> None:
        """Wait until these tables (all) have every row, once."""
        ids = list(range(self.rows))
        for table in tables or TABLES:
            eventually(f"each row is once in {table}", lambda t=table: self.shop.ids(t) == ids)  # type: ignore[misc]

    def fails(self, sink: str, text: str) -> None:
        """Wait until a sink says why it does not run."""

        def holds() -> bool:
            query = self.project.queries()[sink]
            return text in (query["error"] or "") and query["condition"] == "failed"

        eventually(f"{sink} says {text}", holds)

    def restarted_by(self, change: Callable[[], Any]) -> tuple[Any, set[str]]:
        """The document of a change, and which queries run anew after it."""
        before = self.project.run_ids("ne_")
        return change(), self.project.restarted(before)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


def tunnel(name: str, server: SshServer, more: str = "") -> str:
    return (
        f"  {name}:\n    type: ssh-tunnel\n    host: 127.0.0.1\n    port: {server.port}\n"
        f"    user: {server.user}\n    host_keys: [{server.host_key}]\n{more}"
    )


def restarts(document: Any) -> dict[str, str]:
    return {c["address"]: c["reason"] for c in document["changes"] if c["action"] == "restart"}


@pytest.mark.nightly
@pytest.mark.programs
def test_only_queries_behind_a_broken_ssh_server_fail(
    shop: OrdersShop, sshd_servers: Callable[[str], SshServer], registry: SchemaRegistry
) -> None:
    project, nested = shop.project, Nested(shop)
    outer, inner = sshd_servers("outer"), sshd_servers("inner")
    nested.declare(inner, outer, registry)
    # Without keys the tunnels can't be used; ROTATE KEYS makes them, and shows what the servers must know.
    keys = {}
    for connection, server in (("ne_z_inner", inner), ("ne_m_outer", outer)):
        made = project.json("alter", f"ALTER CONNECTION {connection} ROTATE KEYS", "--no-apply")
        keys[connection] = made["public_keys"]
        server.authorize(*made["public_keys"].values())
    nested.more()
    project.apply()
    nested.arrive()

    break_and_repair(nested, inner, outer)
    changes_that_do_not_hold(nested, outer)
    new_keys(nested, inner, keys["ne_z_inner"]["secondary_key"])
    another_registry(nested, registry)
    another_host_key(nested, inner)

    for place in ("state", ".mzplan", "warehouse"):
        for file in (project.folder / place).rglob("*"):
            assert not file.is_file() or b"OPENSSH PRIVATE KEY" not in file.read_bytes(), file
    assert "PRIVATE KEY" not in json.dumps(project.json("status"))


def break_and_repair(nested: Nested, inner: SshServer, outer: SshServer) -> None:
    """What goes through a broken server fails, the rest goes on; repaired, every row arrives, once."""
    outer.kill()
    nested.more()
    nested.arrive("plain")
    nested.fails("sink.ne_near", "connection.ne_m_outer")
    outer.start()
    nested.arrive()
    inner.kill()
    nested.more()
    nested.arrive("near", "plain")
    inner.start()
    nested.arrive()


def changes_that_do_not_hold(nested: Nested, outer: SshServer) -> None:
    """Found out in validation, if asked for; else by the runner, before it stops anything."""
    broken = nested.alter("ALTER CONNECTION ne_m_outer SET PORT = 1 WITH (VALIDATE)", code=1)
    (cause,) = broken["diagnostics"]
    assert (cause["code"], cause["addresses"]) == ("MZ050", sorted(BEHIND_OUTER))

    def rejected() -> Any:
        document = nested.alter("ALTER CONNECTION ne_m_outer SET PORT = 1", "--wait", "60s", code=8)
        nested.more()
        nested.arrive()
        return document

    document, restarted = nested.restarted_by(rejected)
    reasons = restarts(document)
    assert set(reasons) == BEHIND_OUTER
    assert reasons["source.ne_s"] == "connection.ne_m_outer changed, through connection.ne_reg"
    assert [p["condition"] for p in document["pending"]] == ["rejected"] * 3 and not restarted
    nested.alter(f"ALTER CONNECTION ne_m_outer SET PORT = {outer.port}")


def new_keys(nested: Nested, inner: SshServer, secondary: str) -> None:
    """By ROTATE KEYS, or behind the same reference: exactly what is behind the tunnel restarts."""
    rotated, restarted = nested.restarted_by(lambda: nested.alter("ALTER CONNECTION ne_z_inner ROTATE KEYS"))
    assert restarts(rotated) == {"sink.ne_far": "connection.ne_z_inner changed, through connection.ne_a_pg"}
    assert restarted == {"sink.ne_far"}
    assert rotated["public_keys"]["private_key"] == secondary
    inner.authorize(*rotated["public_keys"].values())  # the first key is known no more
    nested.more()
    nested.arrive()

    folder = nested.project.folder / "keys"
    (folder / "ne_m_outer-1").write_bytes((folder / "ne_m_outer-2").read_bytes())
    reasons = restarts(nested.project.json("plan"))
    assert set(reasons) == BEHIND_OUTER
    what = "the value of ${file:keys/ne_m_outer-1} changed, in connection.ne_m_outer"
    assert reasons["sink.ne_far"] == f"{what}, through connection.ne_a_pg and connection.ne_z_inner"
    assert nested.restarted_by(nested.project.apply)[1] == BEHIND_OUTER


def another_registry(nested: Nested, registry: SchemaRegistry) -> None:
    """It is validated by default, with the subject. Then the source that uses it restarts."""
    with SchemaRegistry() as other:
        missing = nested.alter(f"ALTER CONNECTION ne_reg SET URL = '{other.url}'", code=1)
        assert [(d["code"], d["address"]) for d in missing["diagnostics"]] == [("MZ052", "source.ne_s")]
    elsewhere = registry.url.replace("127.0.0.1", "localhost")
    _, restarted = nested.restarted_by(
        lambda: nested.alter(f"ALTER CONNECTION ne_reg SET URL = '{elsewhere}'")
    )
    assert restarted == {"source.ne_s"}
    nested.more()
    nested.arrive()


def another_host_key(nested: Nested, inner: SshServer) -> None:
    """It is an error, until somebody says that it is right."""
    inner.stop()
    inner.new_host_key()
    inner.start()
    nested.more()
    nested.arrive("near", "plain")
    nested.fails("sink.ne_far", "is none of the connection's keys")
    nested.alter(f"ALTER CONNECTION ne_z_inner SET HOST KEY = '{inner.host_key}'")
    nested.arrive()
