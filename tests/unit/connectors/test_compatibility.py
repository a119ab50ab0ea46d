"""Which change keeps a checkpoint: a plan does to the query and to its generation what the table in
docs/internals/endpoints.md says. A checkpoint belongs to a generation."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from tests.unit.small_projects import change_of, commit, files, kafka, postgres, resource, shop, sink, source

DOCS = (Path(__file__).parents[3] / "docs" / "internals" / "endpoints.md").read_text(encoding="utf-8")
KEEPS, REPLACES, UNTOUCHED = "restart", "replace", "in place"

# Each returns a project in which one object has this body, and the address of the query that it concerns.
Made = tuple[Configuration, str]


def cluster(**body: Any) -> Made:
    return shop(k=kafka(**body)), "source.orders"


def database(**body: Any) -> Made:
    tunnel = resource("connection.t", "ssh-tunnel", **TUNNEL)
    return shop(t=tunnel, pg=postgres(**body)), "sink.orders_pg"


def tunnel(**body: Any) -> Made:
    server = resource("connection.t", "ssh-tunnel", **{**TUNNEL, **body})
    return shop(t=server, pg=postgres(ssh_tunnel="t")), "sink.orders_pg"


def registry(columns: str | None = None, **body: Any) -> Made:
    server = resource("connection.r", "schema-registry", **{"type": "schema-registry", "url": URL, **body})
    avro = {"format": {"type": "avro", "schema": columns}} if columns else {}
    return shop(r=server, orders=source(schema_registry="r", **avro)), "source.orders"


def cloud(**body: Any) -> Made:
    aws = resource("connection.a", "aws", **{"type": "aws", "region": "eu-west-1", **body})
    return shop(a=aws, k=kafka(aws="a")), "source.orders"


def folder(**body: Any) -> Made:
    format_ = {"type": "json", "schema": "id BIGINT"}
    lines = resource("source.lines", "files", connection="f", path="in", format=format_)
    return shop(f=files(**body), lines=lines), "source.lines"


def topic(**body: Any) -> Made:
    return shop(b=kafka("b", brokers=["b:1"]), orders=source(**body)), "source.orders"


def tables(**body: Any) -> Made:
    given = {"type": "postgres", "connection": "pg", "tables": ["public.a", "public.b"]}
    given |= {"include": {"table": "shard"}, "schema": "id BIGINT, name STRING", "key": ["shard", "id"]}
    users = resource("source.users", "postgres", **{**given, **body})
    return shop(other=postgres("other", host="i"), users=users), "source.users"


def table_sink(**body: Any) -> Made:
    return shop(pg2=postgres("pg2", host="i"), b=source("b"), orders_pg=sink(**body)), "sink.orders_pg"


def kafka_sink(**body: Any) -> Made:
    given = {"from": "orders", "connection": "k", "topic": "copy", **body}
    return shop(copy=resource("sink.copy", "kafka", **given)), "sink.copy"


def files_sink(format_: str = "json", **body: Any) -> Made:
    given = {"type": "files", "from": "orders", "connection": "f", "path": "out", "format": {"type": format_}}
    return shop(f=files(), out=resource("sink.out", "files", **{**given, **body})), "sink.out"


def sink_of_source(**body: Any) -> Made:
    return topic(**body)[0], "sink.orders_pg"


URL = "http://r:8081"
TUNNEL = {"type": "ssh-tunnel", "host": "h", "user": "u", "host_keys": ["ssh-ed25519 AAAA"]}
SASL = {"mechanism": "PLAIN", "username": "u", "password": "${env:P}"}
SECURED = {"protocol": "SASL_SSL", "sasl": SASL, "ssl": {"ca": "ca.pem"}}
LOGIN = {"user": "u", "password": "${env:P}"}
AVRO = {"columns": "id BIGINT"}
REGISTRY = "schema-registry connection: everything but `cleartext_login`"
CSV_FORMAT = {"type": "csv", "schema": "id BIGINT, amount INT"}
HANDLING = "any: lifecycle, `on_replace`, `on_upstream_change`, `on_target_change`"

# The row, what happens, the project, and the change.
ROWS: list[tuple[str, str, Callable[..., Made], dict[str, Any]]] = [
    ("kafka connection: brokers", KEEPS, cluster, {"brokers": ["b:9092"]}),
    ("kafka connection: security, sasl, ssl", KEEPS, cluster, {"security": SECURED}),
    ("kafka connection: client tuning", KEEPS, cluster, {"options": {"receive.buffer.bytes": 65536}}),
    ("postgres connection: host, port", KEEPS, database, {"host": "i", "port": 5433}),
    ("postgres connection: user, password", KEEPS, database, {"user": "other", "password": "${env:P}"}),
    ("postgres connection: tls, `cleartext_login`", KEEPS, database, {"tls": {"mode": "require"}}),
    ("postgres connection: tls, `cleartext_login`", KEEPS, database, {"cleartext_login": "never"}),
    ("postgres connection: tunnel", KEEPS, database, {"ssh_tunnel": "t"}),
    ("postgres connection: database", REPLACES, database, {"database": "other"}),
    ("ssh-tunnel connection: everything", KEEPS, tunnel, {"host": "i"}),
    ("ssh-tunnel connection: everything", KEEPS, tunnel, {"host_keys": ["ssh-ed25519 BBBB"]}),
    ("ssh-tunnel connection: everything", KEEPS, tunnel, {"private_key": "${env:K}"}),
    (REGISTRY, KEEPS, registry, LOGIN),
    (REGISTRY, KEEPS, registry, {"tls": {"ca": "ca.pem"}}),
    ("aws connection: everything", KEEPS, cloud, {"region": "eu-north-1"}),
    ("aws connection: everything", KEEPS, cloud, {"role_arn": "arn:aws:iam::123456789012:role/reader"}),
    ("files connection: path", REPLACES, folder, {"path": "/other"}),
    ("kafka source: connection (same cluster)", KEEPS, topic, {"connection": "b"}),
    ("kafka source: trigger", KEEPS, topic, {"trigger": {"interval": "2s"}}),
    ("kafka source: rate limits", KEEPS, topic, {"max_offsets_per_trigger": 10}),
    ("kafka source: an added column", KEEPS, topic, {"columns": "id BIGINT, amount INT, more INT"}),
    ("kafka source: topic", REPLACES, topic, {"topic": "other"}),
    ("kafka source: format", REPLACES, topic, {"format": CSV_FORMAT}),
    ("kafka source: envelope, its key", REPLACES, topic, {"envelope": {"type": "upsert", "key": ["id"]}}),
    ("kafka source: a removed column", REPLACES, topic, {"columns": "id BIGINT"}),
    ("kafka source: a retyped column", REPLACES, topic, {"columns": "id BIGINT, amount STRING"}),
    ("kafka source: `start_offsets`", UNTOUCHED, topic, {"start_offsets": "latest"}),
    ("postgres source: connection (same database)", KEEPS, tables, {"connection": "other"}),
    ("postgres source: `snapshot`", KEEPS, tables, {"snapshot": {"parallelism": 4}}),
    ("postgres source: an added table", KEEPS, tables, {"tables": ["public.a", "public.b", "public.c"]}),
    ("postgres source: a removed table", REPLACES, tables, {"tables": ["public.a"]}),
    ("postgres source: an added column", KEEPS, tables, {"schema": "id BIGINT, name STRING, more INT"}),
    ("postgres source: a removed or retyped column", REPLACES, tables, {"schema": "id BIGINT"}),
    ("postgres source: a removed or retyped column", REPLACES, tables, {"schema": "id BIGINT, name BINARY"}),
    ("postgres source: key", REPLACES, tables, {"key": ["shard", "name"]}),
    ("postgres source: `include`", REPLACES, tables, {"include": {"table": "of"}}),
    ("postgres source: `publication`, `slot`", REPLACES, tables, {"publication": "p"}),
    ("postgres source: `publication`, `slot`", REPLACES, tables, {"slot": "s"}),
    ("sink: connection (same target)", KEEPS, table_sink, {"connection": "pg2"}),
    ("sink: trigger", KEEPS, table_sink, {"trigger": {"interval": "2s"}}),
    ("sink: batch size", KEEPS, table_sink, {"max_files_per_trigger": 3}),
    ("sink: `select`", KEEPS, table_sink, {"select": ["id"]}),
    ("sink: `where`", KEEPS, table_sink, {"where": "amount > 0"}),
    ("sink: `compare`", KEEPS, table_sink, {"compare": "fail"}),
    ("sink: `compare`", KEEPS, kafka_sink, {"compare": "fail"}),
    ("kafka sink: `transaction_timeout`", KEEPS, kafka_sink, {"transaction_timeout": "1m"}),
    ("sink: target table", REPLACES, table_sink, {"table": "u"}),
    ("sink: topic or folder", REPLACES, kafka_sink, {"topic": "other"}),
    ("sink: format", REPLACES, files_sink, {"format_": "csv"}),
    ("postgres sink: `staging_schema`", REPLACES, table_sink, {"staging_schema": "other"}),
    ("sink: key", REPLACES, table_sink, {"key": ["amount"]}),
    ("sink: `partition_by`", REPLACES, files_sink, {"partition_by": ["id"]}),
    ("sink: `from`", REPLACES, table_sink, {"from": "b"}),
    ("any: its source is replaced", REPLACES, sink_of_source, {"topic": "other"}),
    ("any: description, labels", UNTOUCHED, topic, {"description": "x", "labels": {"a": "b"}}),
    (HANDLING, UNTOUCHED, table_sink, {"lifecycle": {"prevent_destroy": True}}),
    (HANDLING, UNTOUCHED, table_sink, {"on_target_change": "accept"}),
]
# The same with a body before the change.
CHANGED: list[tuple[str, str, Callable[..., Made], dict[str, Any], dict[str, Any]]] = [
    (REGISTRY, KEEPS, registry, {**AVRO, **LOGIN}, {"url": "http://s:8081"}),
    ("kafka source: an added column", KEEPS, registry, AVRO, {"columns": "id BIGINT, more STRING"}),
    *(
        ("kafka sink: `delivery`", KEEPS, kafka_sink, {"delivery": before}, {"delivery": after})
        for before, after in permutations(("exactly-once", "at-least-once"))
    ),
    ("sink: mode", REPLACES, table_sink, {"mode": "append", "key": None}, {"mode": "upsert", "key": ["id"]}),
]
ALL = [*((row, expected, make, {}, change) for row, expected, make, change in ROWS), *CHANGED]


@pytest.mark.parametrize(("row", "expected", "make", "body", "change"), ALL, ids=[row[0] for row in ALL])
def test_which_change_keeps_a_checkpoint(
    row: str, expected: str, make: Callable[..., Made], body: dict[str, Any], change: dict[str, Any]
) -> None:
    (before, _), (after, address) = make(**body), make(**{**body, **change})
    planned = change_of(build_plan(after, commit(before)), address)
    assert planned.before is not None and planned.after is not None
    assert planned.after.id == planned.before.id
    assert (planned.after.generation == planned.before.generation) == (expected != REPLACES)
    assert planned.effect == {KEEPS: "restart", REPLACES: "replace", UNTOUCHED: "in-place"}[expected]
    assert documented()[row] == expected


def test_labels_of_a_connection_change_no_query() -> None:
    (before, address), (after, _) = folder(), folder(labels={"a": "b"})
    assert address not in {str(change.address) for change in build_plan(after, commit(before)).changes}


def test_every_row_of_the_table_is_tested() -> None:
    assert set(documented()) == {row for row, *_ in ALL}


def documented() -> dict[str, str]:
    """Return what happens by object and change, from the page's table."""
    section = DOCS.partition("## Which change keeps a checkpoint")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.match(r"[a-z]", cells[0]) and cells[0] != "object":
            found[f"{cells[0]}: {cells[1]}"] = cells[2]
    return found
