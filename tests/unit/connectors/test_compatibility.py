"""Which change keeps a checkpoint: each row of the table in docs/internals/endpoints.md, by what the plan
does to the queries and to the generations under which their checkpoints lie."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, Resource
from mzplan.plan import build_plan
from tests.unit.small_projects import (
    actions,
    change_of,
    commit,
    files,
    kafka,
    postgres,
    resource,
    shop,
    sink,
    source,
)

DOCS = (Path(__file__).parents[3] / "docs" / "internals" / "endpoints.md").read_text(encoding="utf-8")
SASL = {"mechanism": "PLAIN", "username": "u", "password": "${env:P}"}
HOW_TO = "any: lifecycle, `on_replace`, `on_upstream_change`, `on_target_change`"
KEEPS, REPLACES, UNTOUCHED = "restart", "replace", "in place"

ROWS: list[tuple[str, Configuration, str, str]] = [
    ("kafka connection: brokers", shop(k=kafka(brokers=["b:9092"])), "source.orders", KEEPS),
    (
        "kafka connection: security, sasl, ssl",
        shop(k=kafka(security={"protocol": "SASL_SSL", "sasl": SASL, "ssl": {"ca": "ca.pem"}})),
        "source.orders",
        KEEPS,
    ),
    (
        "kafka connection: client tuning",
        shop(k=kafka(options={"receive.buffer.bytes": 65536})),
        "source.orders",
        KEEPS,
    ),
    ("postgres connection: host, port", shop(pg=postgres(host="i", port=5433)), "sink.orders_pg", KEEPS),
    (
        "postgres connection: user, password",
        shop(pg=postgres(user="other", password="${env:P}")),
        "sink.orders_pg",
        KEEPS,
    ),
    *(
        ("postgres connection: tls, `cleartext_login`", shop(pg=postgres(**changed)), "sink.orders_pg", KEEPS)
        for changed in ({"tls": {"mode": "require"}}, {"cleartext_login": "never"})
    ),
    ("postgres connection: database", shop(pg=postgres(database="other")), "sink.orders_pg", REPLACES),
    (
        "kafka source: connection (same cluster)",
        shop(b=kafka("b", brokers=["b:1"]), orders=source(connection="b")),
        "source.orders",
        KEEPS,
    ),
    ("kafka source: trigger", shop(orders=source(trigger={"interval": "2s"})), "source.orders", KEEPS),
    ("kafka source: rate limits", shop(orders=source(max_offsets_per_trigger=10)), "source.orders", KEEPS),
    (
        "kafka source: an added column",
        shop(orders=source(columns="id BIGINT, amount INT, more INT")),
        "source.orders",
        KEEPS,
    ),
    ("kafka source: topic", shop(orders=source(topic="other")), "source.orders", REPLACES),
    (
        "kafka source: format",
        shop(orders=source(format={"type": "csv", "schema": "id BIGINT, amount INT"})),
        "source.orders",
        REPLACES,
    ),
    (
        "kafka source: envelope, its key",
        shop(orders=source(envelope={"type": "upsert", "key": ["id"]})),
        "source.orders",
        REPLACES,
    ),
    ("kafka source: a removed column", shop(orders=source(columns="id BIGINT")), "source.orders", REPLACES),
    (
        "kafka source: a retyped column",
        shop(orders=source(columns="id BIGINT, amount STRING")),
        "source.orders",
        REPLACES,
    ),
    (
        "kafka source: `start_offsets`",
        shop(orders=source(start_offsets="latest")),
        "source.orders",
        UNTOUCHED,
    ),
    (
        "sink: connection (same target)",
        shop(b=postgres("b", host="i"), orders_pg=sink(connection="b")),
        "sink.orders_pg",
        KEEPS,
    ),
    ("sink: trigger", shop(orders_pg=sink(trigger={"interval": "2s"})), "sink.orders_pg", KEEPS),
    ("sink: batch size", shop(orders_pg=sink(max_files_per_trigger=3)), "sink.orders_pg", KEEPS),
    ("sink: `select`", shop(orders_pg=sink(select=["id"])), "sink.orders_pg", KEEPS),
    ("sink: `where`", shop(orders_pg=sink(where="amount > 0")), "sink.orders_pg", KEEPS),
    ("sink: target table", shop(orders_pg=sink(table="u")), "sink.orders_pg", REPLACES),
    ("sink: key", shop(orders_pg=sink(key=["amount"])), "sink.orders_pg", REPLACES),
    ("sink: `from`", shop(b=source("b"), orders_pg=sink(**{"from": "b"})), "sink.orders_pg", REPLACES),
    (
        "any: description, labels",
        shop(orders=source(description="x", labels={"a": "b"})),
        "source.orders",
        UNTOUCHED,
    ),
    ("any: its source is replaced", shop(orders=source(topic="other")), "sink.orders_pg", REPLACES),
]


@pytest.mark.parametrize(("row", "after", "address", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_which_change_keeps_a_checkpoint(row: str, after: Configuration, address: str, expected: str) -> None:
    _check(build_plan(after, commit(shop())), address, expected)
    assert _documented().get(row) == expected


def test_the_mode_of_a_sink_makes_another_target() -> None:
    before = shop(orders_pg=resource("sink.orders_pg", "postgres", **APPEND))
    _check(build_plan(shop(), commit(before)), "sink.orders_pg", REPLACES)
    assert _documented()["sink: mode"] == REPLACES


@pytest.mark.parametrize(
    ("row", "changed", "expected"),
    [
        ("files connection: path", {"path": "/other"}, REPLACES),
        ("any: description, labels", {"labels": {"a": "b"}}, UNTOUCHED),
    ],
)
def test_files_whose_checkpoint_holds_their_paths(row: str, changed: dict[str, Any], expected: str) -> None:
    lines = resource(
        "source.lines",
        "files",
        connection="f",
        path="in",
        format={"type": "json", "schema": "id BIGINT"},
    )
    plan = build_plan(shop(f=files(**changed), lines=lines), commit(shop(f=files(), lines=lines)))
    if expected == UNTOUCHED:
        assert "source.lines" not in actions(plan)
    else:
        _check(plan, "source.lines", expected)
    assert _documented()[row] == expected


def _tunnel(**body: Any) -> Resource:
    given = {"type": "ssh-tunnel", "host": "h", "user": "u", "host_keys": ["ssh-ed25519 AAAA"], **body}
    return resource("connection.t", "ssh-tunnel", **given)


def _registry(**body: Any) -> Resource:
    given = {"type": "schema-registry", "url": "http://r:8081", **body}
    return resource("connection.r", "schema-registry", **given)


def _registered_avro(registry: Resource, columns: str = "id BIGINT") -> Configuration:
    format_ = {"type": "avro", "schema": columns}
    return shop(r=registry, orders=source(schema_registry="r", format=format_))


def _through(tunnel: Resource) -> Configuration:
    return shop(t=tunnel, pg=postgres(ssh_tunnel="t"))


def _registered(registry: Resource) -> Configuration:
    return shop(r=registry, orders=source(schema_registry="r"))


def _to_kafka(**body: Any) -> Configuration:
    given = {"from": "orders", "connection": "k", "topic": "copy", **body}
    return shop(orders_pg=resource("sink.copy", "kafka", **given))


def _to_files(format_: str, **more: Any) -> Configuration:
    body = {"type": "files", "from": "orders", "connection": "f", "path": "out", "format": {"type": format_}}
    body |= more
    return shop(f=files(), orders_pg=resource("sink.out", "files", **body))


def _with_aws(**changed: Any) -> Configuration:
    aws = resource("connection.a", "aws", **{"type": "aws", "region": "eu-west-1", **changed})
    return shop(a=aws, k=kafka(aws="a"))


def _tables(connection: str = "pg", **changed: Any) -> Configuration:
    given = {
        "type": "postgres",
        "tables": ["public.a", "public.b"],
        "include": {"table": "shard"},
        "schema": "id BIGINT, name STRING",
        "key": ["shard", "id"],
        **changed,
    }
    users = resource("source.users", "postgres", connection=connection, **given)
    return shop(other=postgres("other", host="i"), users=users)


FROM_OTHERS: list[tuple[str, Configuration, Configuration, str, str]] = [
    ("postgres connection: tunnel", shop(t=_tunnel()), _through(_tunnel()), "sink.orders_pg", KEEPS),
    *(
        (
            "ssh-tunnel connection: everything",
            _through(_tunnel()),
            _through(_tunnel(**changed)),
            address,
            KEEPS,
        )
        for address in ("sink.orders_pg",)
        for changed in (
            {"host": "i"},
            {"port": 2222},
            {"user": "v"},
            {"host_keys": ["ssh-ed25519 BBBB"]},
            {"private_key": "${env:K}"},
        )
    ),
    *(
        (
            "schema-registry connection: everything but `cleartext_login`",
            _registered(_registry()),
            _registered(_registry(**changed)),
            "source.orders",
            KEEPS,
        )
        for changed in (
            {"url": "http://s:8081"},
            {"user": "u", "password": "${env:P}"},
            {"tls": {"ca": "ca.pem"}},
        )
    ),
    *(
        (
            "schema-registry connection: everything but `cleartext_login`",
            _registered_avro(_registry(user="u", password="${env:P}")),
            _registered_avro(_registry(**changed)),
            "source.orders",
            KEEPS,
        )
        for changed in (
            {"url": "http://s:8081", "user": "u", "password": "${env:P}"},
            {"user": "u", "password": "${env:OTHER}"},
        )
    ),
    (
        "kafka source: an added column",
        _registered_avro(_registry()),
        _registered_avro(_registry(), "id BIGINT, more STRING"),
        "source.orders",
        KEEPS,
    ),
    (
        "kafka source: format",
        _registered(_registry()),
        _registered_avro(_registry(), "id BIGINT, amount INT"),
        "source.orders",
        REPLACES,
    ),
    *(
        ("kafka sink: `delivery`", _to_kafka(delivery=one), _to_kafka(delivery=other), "sink.copy", KEEPS)
        for one, other in permutations(("exactly-once", "at-least-once"))
    ),
    (
        "kafka sink: `transaction_timeout`",
        _to_kafka(),
        _to_kafka(transaction_timeout="1m"),
        "sink.copy",
        KEEPS,
    ),
    ("sink: `compare`", _to_kafka(), _to_kafka(compare="fail"), "sink.copy", KEEPS),
    ("sink: `compare`", shop(), shop(orders_pg=sink(compare="fail")), "sink.orders_pg", KEEPS),
    ("sink: topic or folder", _to_kafka(), _to_kafka(topic="other"), "sink.copy", REPLACES),
    ("sink: format", _to_files("json"), _to_files("csv"), "sink.out", REPLACES),
    ("sink: `partition_by`", _to_files("json"), _to_files("json", partition_by=["id"]), "sink.out", REPLACES),
    *(
        ("aws connection: everything", _with_aws(), _with_aws(**changed), "source.orders", KEEPS)
        for changed in (
            {"region": "eu-north-1"},
            {"role_arn": "arn:aws:iam::123456789012:role/reader"},
            {"access_key_id": "AKIA", "secret_access_key": "${env:S}"},
        )
    ),
    *(
        (f"postgres source: {what}", _tables(), _tables(**changed), "source.users", expected)
        for what, changed, expected in (
            ("connection (same database)", {"connection": "other"}, KEEPS),
            ("`snapshot`", {"snapshot": {"parallelism": 4}}, KEEPS),
            ("an added table", {"tables": ["public.a", "public.b", "public.c"]}, KEEPS),
            ("a removed table", {"tables": ["public.a"]}, REPLACES),
            ("an added column", {"schema": "id BIGINT, name STRING, more INT"}, KEEPS),
            ("a removed or retyped column", {"schema": "id BIGINT"}, REPLACES),
            ("a removed or retyped column", {"schema": "id BIGINT, name BINARY"}, REPLACES),
            ("key", {"key": ["shard", "name"]}, REPLACES),
            ("`include`", {"include": {"table": "of"}}, REPLACES),
            ("`publication`, `slot`", {"publication": "p"}, REPLACES),
            ("`publication`, `slot`", {"slot": "s"}, REPLACES),
        )
    ),
    (
        "postgres sink: `staging_schema`",
        shop(),
        shop(orders_pg=sink(staging_schema="other")),
        "sink.orders_pg",
        REPLACES,
    ),
]


@pytest.mark.parametrize(("row", "before", "after", "address", "expected"), FROM_OTHERS)
def test_changes_of_other_projects(
    row: str, before: Configuration, after: Configuration, address: str, expected: str
) -> None:
    _check(build_plan(after, commit(before)), address, expected)
    assert _documented().get(row) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"lifecycle": {"prevent_destroy": True}},
        {"on_replace": "truncate"},
        {"on_target_change": "accept"},
    ],
)
def test_what_says_how_to_handle_changes_is_changed_in_place(changed: dict[str, Any]) -> None:
    plan = build_plan(shop(orders_pg=sink(**changed)), commit(shop()))
    _check(plan, "sink.orders_pg", UNTOUCHED)
    assert (
        _documented()["any: lifecycle, `on_replace`, `on_upstream_change`, `on_target_change`"] == UNTOUCHED
    )


def test_the_table_says_nothing_that_is_not_tested() -> None:
    tested = {row[0] for row in (*ROWS, *FROM_OTHERS)} | {
        "sink: mode",
        "files connection: path",
        HOW_TO,
    }
    assert set(_documented()) == tested


APPEND = {"from": "orders", "connection": "pg", "table": "t", "mode": "append"}


def _check(plan: Plan, address: str, expected: str) -> None:
    """What becomes of the query, and whether its checkpoint (its id and generation) is the one it had."""
    change = change_of(plan, address)
    assert change.before is not None and change.after is not None
    assert change.after.id == change.before.id
    kept = change.after.generation == change.before.generation
    assert kept == (expected != REPLACES)
    assert change.effect == {KEEPS: "restart", REPLACES: "replace", UNTOUCHED: "in-place"}[expected]


def _documented() -> dict[str, str]:
    """Object and change → what happens, from the page's table."""
    section = DOCS.partition("## Which change keeps a checkpoint")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and re.match(r"[a-z]", cells[0]) and cells[0] != "object":
            found[f"{cells[0]}: {cells[1]}"] = cells[2]
    return found
