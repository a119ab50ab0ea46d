"""Every mistake: one error, at its place, with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.config import load_configuration
from mzplan.model.diagnostics import MzplanError
from tests.unit.config_files import PROJECT, SHOP, all_text, brief, errors, write

# name → (files, what is expected: place, code, summary; then words of detail and fix)
LAKE = SHOP + "  out: {from: orders, connection: lake, path: out, "
CASES: dict[str, tuple[dict[str, str | bytes], list[str], list[str]]] = {
    # Broken YAML
    "open quote": (
        {"a.yaml": 'connections:\n  k: {type: kafka, brokers: ["a:1]}\n'},
        ["a.yaml:2:30 MZ002 Broken YAML"],
        ["never closed", "close the quote"],
    ),
    "open bracket": (
        {"a.yaml": "connections:\n  k:\n    brokers: [a:1\nsources: {}\n"},
        ["a.yaml:3:14 MZ002 Broken YAML"],
        ["not closed", "`]`"],
    ),
    "tab": (
        {"a.yaml": "connections:\n\tk: {}\n"},
        ["a.yaml:2:1 MZ002 Broken YAML"],
        ["tabs"],
    ),
    "a colon too many": (
        {"a.yaml": "sources:\n  x:\n    description: a: b\n"},
        ["a.yaml:3:19 MZ002 Broken YAML"],
        ["quotes"],
    ),
    "indentation": (
        {"a.yaml": "sources:\n  x:\n    topic: a\n   connection: b\n"},
        ["a.yaml:4:4 MZ002 Broken YAML"],
        ["equally"],
    ),
    "no colon": (
        {"a.yaml": "sources:\n  x:\n    topic a\n    connection: b\n"},
        ["a.yaml:4:15 MZ002 Broken YAML"],
        [],
    ),
    "two documents": (
        {"a.yaml": "sources: {}\n---\nsinks: {}\n"},
        ["a.yaml:2:1 MZ002 Several documents in one file"],
        ["file of its own"],
    ),
    "a tag": (
        {"a.yaml": "sources: !!python/object:os.system {}\n"},
        ["a.yaml:1:10 MZ002 Unknown tag !!python/object:os.system"],
        ["remove the tag"],
    ),
    "an own tag": (
        {"a.yaml": "sources:\n  x: !secret abc\n"},
        ["a.yaml:2:6 MZ002 Unknown tag !secret"],
        ["remove the tag"],
    ),
    "an unknown alias": (
        {"a.yaml": "sources:\n  x: &base {}\n  y: *bas\n"},
        ["a.yaml:3:6 MZ002 Unknown alias *bas"],
        ['did you mean "base"?'],
    ),
    "a number of no size": (
        {"a.yaml": "connections:\n  k: {type: kafka, brokers: ['a:1'], labels: {n: 99999999999999999999}}\n"},
        ["a.yaml:2:50 MZ002 Unusable value"],
        ["64 bits", "quote"],
    ),
    "not a number": (
        {"a.yaml": "connections:\n  k: {type: kafka, brokers: ['a:1'], labels: {n: .nan}}\n"},
        ["a.yaml:2:50 MZ002 Unusable value"],
        [],
    ),
    "an escaped control character": (
        {"a.yaml": 'connections:\n  k: {type: files, path: "a\\0b"}\n'},
        ["a.yaml:2:26 MZ002 Unusable value"],
        ["U+0000"],
    ),
    "a number of no size for a port": (
        {"a.yaml": SHOP.replace("host: localhost", "host: localhost\n    port: 99999999999999999999")},
        ["a.yaml:6:11 MZ002 Unusable value"],
        [],
    ),
    "a list as a key": (
        {"a.yaml": "sources:\n  ? [a, b]\n  : x\n"},
        ["a.yaml:2:5 MZ002 A key that is not a word"],
        [],
    ),
    "a merge of no mapping": (
        {"a.yaml": "sources:\n  x: &x [1]\nsinks:\n  <<: *x\n"},
        ["a.yaml:2:3 MZ005 source.x is not a mapping", "a.yaml:4:7 MZ002 Unusable value"],
        ["merges mappings"],
    ),
    # Something twice
    "a key twice": (
        {"a.yaml": "connections:\n  k:\n    type: files\n    path: a\n    path: b\n"},
        ['a.yaml:5:5 MZ003 The key "path" is declared twice'],
        ["a.yaml:4:5"],
    ),
    "a name twice in a file": (
        {"a.yaml": "connections:\n  k: {type: files, path: a}\n  k: {type: files, path: b}\n"},
        ["a.yaml:3:3 MZ003 connection.k is declared twice"],
        ["a.yaml:2:3"],
    ),
    "a name twice in two files": (
        {
            "a.yaml": "connections:\n  k: {type: files, path: a}\n",
            "deep/b.yml": "connections:\n\n  k: {type: files, path: b}\n",
        },
        ["deep/b.yml:3:3 MZ003 connection.k is declared twice"],
        ["a.yaml:2:3"],
    ),
    # Keys and values
    "an unknown key": (
        {"a.yaml": "connections:\n  k:\n    type: kafka\n    broker: ['a:1']\n    brokers: ['a:1']\n"},
        ['a.yaml:4:5 MZ004 Unknown key "broker"'],
        ["brokers, description, labels"],
    ),
    "a misspelled key": (
        {"a.yaml": "connections:\n  k:\n    type: kafka\n    brokrs: ['a:1']\n"},
        ['a.yaml:4:5 MZ004 Unknown key "brokrs"'],
        ['did you mean "brokers"?'],
    ),
    "a key of other sources": (
        {
            "a.yaml": "sources:\n  s:\n    type: local\n    schema: id INT\n"
            "    lifecycle: {replace: from-collection}\n"
        },
        ['a.yaml:5:17 MZ004 Unknown key "replace"'],
        ["kafka, files, delta or postgres", "Steps of a local source"],
    ),
    "a misspelled connection": (
        {"a.yaml": "sources:\n  k:\n    conection: x\n    topic: t\n"},
        ['a.yaml:3:5 MZ004 Unknown key "conection"'],
        ['did you mean "connection"?'],
    ),
    "a misspelled type": (
        {"a.yaml": "connections:\n  k:\n    typ: kafka\n"},
        ['a.yaml:3:5 MZ004 Unknown key "typ"'],
        ['did you mean "type"?'],
    ),
    "an unknown top-level key": (
        {"a.yaml": "source:\n  x: {}\n"},
        ['a.yaml:1:1 MZ004 Unknown key "source"'],
        ['did you mean "sources"?'],
    ),
    "settings in another file": (
        {"a.yaml": "state: {path: x}\n"},
        ['a.yaml:1:1 MZ004 Unknown key "state"'],
        ["mzplan.yaml"],
    ),
    "an unknown setting": (
        {"mzplan.yaml": PROJECT + "warehose: ./w\n"},
        ['mzplan.yaml:3:1 MZ004 Unknown key "warehose"'],
        ['did you mean "warehouse"?'],
    ),
    "a wrong type": (
        {"a.yaml": SHOP.replace("table: public.orders", "table: public.orders\n    paused: yes")},
        ['a.yaml:20:13 MZ005 Wrong type for "paused"'],
        ['Expected true or false, found text ("yes")', "write true"],
    ),
    "text for a number": (
        {"a.yaml": SHOP.replace("host: localhost", "host: localhost\n    port: '5432'")},
        ['a.yaml:6:11 MZ005 Wrong type for "port"'],
        ["without quotes"],
    ),
    "a number for text": (
        {"a.yaml": SHOP.replace("database: shop", "database: 5")},
        ['a.yaml:6:15 MZ005 Wrong type for "database"'],
        ['put it in quotes: "5"'],
    ),
    "text for a list": (
        {"a.yaml": SHOP.replace('["localhost:9092"]', "localhost:9092")},
        ['a.yaml:2:38 MZ005 Wrong type for "brokers"'],
        ["[localhost:9092]"],
    ),
    "a list for a mapping": (
        {"a.yaml": SHOP.replace("{type: json, schema", "[{type: json, schema").replace('P"}', 'P"}]')},
        ['a.yaml:14:5 MZ005 Wrong type for "format"'],
        ["Expected a mapping, found a list"],
    ),
    "a wrong pattern": (
        {"a.yaml": SHOP.replace("localhost:9092", "localhost")},
        ['a.yaml:2:39 MZ005 Wrong value for "brokers[0]"'],
        ["host:port", '"broker:9092"'],
    ),
    "a number out of range": (
        {"a.yaml": SHOP.replace("host: localhost", "host: localhost\n    port: 70000")},
        ['a.yaml:6:11 MZ005 Wrong value for "port"'],
        ["from 1 to 65535", "write 65535 or less"],
    ),
    "an empty list": (
        {"a.yaml": SHOP.replace('["localhost:9092"]', "[]")},
        ['a.yaml:2:29 MZ005 Wrong value for "brokers"'],
        ["empty list", "at least one"],
    ),
    "a key column twice": (
        {"a.yaml": SHOP.replace("key: [id]", "key: [id, id]")},
        ['a.yaml:21:5 MZ005 Wrong value for "key"'],
        ["duplicate"],
    ),
    "no such day": (
        {
            "a.yaml": SHOP.replace(
                "topic: orders\n", "topic: orders\n    start_offsets: 2026-02-30T08:00:00Z\n"
            )
        },
        ['a.yaml:14:20 MZ005 Wrong value for "start_offsets"'],
        [
            '"2026-02-30T08:00:00Z" can\'t be used here',
            "It can be earliest, latest, or a time with its zone, such as 2026-11-01T08:00:00Z",
            "use one of these",
        ],
    ),
    "a start that is nearly right": (
        {"a.yaml": SHOP.replace("topic: orders\n", "topic: orders\n    start_offsets: latst\n")},
        ['a.yaml:14:20 MZ005 Wrong value for "start_offsets"'],
        ['did you mean "latest"?'],
    ),
    "a wrong choice": (
        {"a.yaml": SHOP.replace("mode: upsert", "mode: upsrt")},
        ['a.yaml:20:11 MZ005 Wrong value for "mode"'],
        ['did you mean "upsert"?'],
    ),
    "an unknown connection type": (
        {"a.yaml": SHOP.replace("type: postgres", "type: postgresql\n    hostt: x")},
        ["a.yaml:4:11 MZ005 Unknown connection type"],
        ['did you mean "postgres"?'],
    ),
    "an unknown sink type": (
        {"a.yaml": SHOP + "  x: {type: consle, from: orders}\n"},
        ["a.yaml:22:13 MZ005 Unknown sink type"],
        ['did you mean "console"?'],
    ),
    "a resource that is none": (
        {"a.yaml": "sources:\n  x: 5\n  y:\n"},
        [
            "a.yaml:2:3 MZ005 source.x is not a mapping",
            "a.yaml:3:3 MZ005 source.y is not a mapping",
        ],
        [],
    ),
    "a section that is none": (
        {"a.yaml": "sources: [a, b]\n"},
        ['a.yaml:1:1 MZ005 Wrong type for "sources"'],
        ["found a list"],
    ),
    "a file that is none": (
        {"a.yaml": "- a\n- b\n"},
        ["a.yaml:1:1 MZ005 Not a configuration file"],
        [],
    ),
    "one slot of two sources": (
        {
            "a.yaml": SHOP,
            "b.yaml": "connections:\n  again: {type: postgres, host: localhost, database: d, user: b, "
            "password: '${env:B}'}\nsources:\n"
            + "".join(
                f"  {name}: {{connection: {link}, slot: {slot}, tables: [t], schema: id INT, key: [id]}}\n"
                for name, link, slot in (
                    ("one", "shop_pg", "theirs"),
                    ("two", "again", "theirs"),
                    ("three", "again", "mine"),
                )
            ),
        },
        ['b.yaml:5:34 MZ020 Two sources read slot "theirs"'],
        ["source.one also reads it, at b.yaml:4:36", "leave `slot` out"],
    ),
    "a missing key": (
        {"a.yaml": SHOP.replace("    topic: orders\n", "")},
        ['a.yaml:11:3 MZ006 Missing key "topic"'],
        ["add `topic:`"],
    ),
    "a missing type": (
        {"a.yaml": "connections:\n  k: {path: x}\n"},
        ['a.yaml:2:3 MZ006 Missing key "type"'],
        ["files, kafka, postgres"],
    ),
    "a missing connection": (
        {"a.yaml": SHOP.replace("    connection: shop_kafka\n", "")},
        ['a.yaml:11:3 MZ006 Missing key "connection"'],
        [],
    ),
    "an empty project": (
        {"mzplan.yaml": "# nothing yet\n"},
        ['mzplan.yaml:1:1 MZ006 Missing key "project"', 'mzplan.yaml:1:1 MZ006 Missing key "version"'],
        [],
    ),
    "a wrong version": (
        {"mzplan.yaml": "version: 2\nproject: shop\n"},
        ['mzplan.yaml:1:10 MZ005 Wrong value for "version"'],
        ["It can only be 1."],
    ),
    "certificate without key": (
        {
            "a.yaml": "connections:\n  k:\n    type: kafka\n    brokers: ['a:1']\n    security:\n"
            "      protocol: SSL\n      ssl: {certificate: a.pem}\n"
        },
        ['a.yaml:7:7 MZ006 Missing key "key"'],
        ["certificate and key must be set together"],
    ),
    # Names and references
    "an invalid name": (
        {"a.yaml": "connections:\n  Shop-Kafka: {type: files, path: x}\n"},
        ['a.yaml:2:3 MZ011 Invalid name "Shop-Kafka"'],
        ["shop_kafka"],
    ),
    "an invalid instance name": (
        {"mzplan.yaml": PROJECT + "instances:\n  local: {type: dry}\n  B-1: {type: dry}\n"},
        ['mzplan.yaml:5:3 MZ011 "B-1" can\'t be a key here'],
        [],
    ),
    "an unknown connection": (
        {"a.yaml": SHOP.replace("connection: shop_kafka", "connection: shop_kafk")},
        ["a.yaml:12:17 MZ012 Unknown connection"],
        [
            'source.orders refers to "shop_kafk", which no file declares.',
            'did you mean "shop_kafka" (a.yaml:2:3)?',
        ],
    ),
    "an unknown source": (
        {"a.yaml": SHOP.replace("from: orders", "from: nothing_like_it")},
        ["a.yaml:17:11 MZ012 Unknown source or view"],
        ["declare it under `sources:`"],
    ),
    "a source where a connection should be": (
        {"a.yaml": SHOP.replace("connection: shop_pg", "connection: orders")},
        ["a.yaml:18:17 MZ012 Unknown connection"],
        ["source.orders is a source (a.yaml:11:3)"],
    ),
    "an unknown instance": (
        {"a.yaml": SHOP.replace("topic: orders", "topic: orders\n    instance: locl")},
        ["a.yaml:14:15 MZ012 Unknown instance"],
        ['did you mean "local"?'],
    ),
    "no default instance": (
        {
            "mzplan.yaml": PROJECT + "instances: {prod: {type: cluster}, ci: {type: dry}}\n",
            "a.yaml": SHOP[: SHOP.index("sinks")],
        },
        ["a.yaml:11:3 MZ012 No instance"],
        ["source.orders names no instance. mzplan.yaml declares: ci, prod.", "instance: ci"],
    ),
    "a connection of the wrong type": (
        {
            "a.yaml": SHOP.replace("connection: shop_kafka", "connection: registry"),
            "b.yaml": 'connections:\n  registry: {type: schema-registry, url: "http://localhost:8081"}\n',
        },
        ["a.yaml:12:17 MZ013 A source can't use this connection"],
        ["files, kafka, postgres"],
    ),
    "a type that the connection does not fit": (
        {"a.yaml": SHOP.replace("connection: shop_pg\n", "connection: lake\n    type: postgres\n")},
        ["a.yaml:18:17 MZ013 Wrong type of connection"],
        ["use one of: shop_pg"],
    ),
    "a connection that is not a name": (
        {"a.yaml": SHOP.replace("connection: shop_pg", "connection: [shop_pg]")},
        ['a.yaml:18:5 MZ005 Wrong type for "connection"'],
        [],
    ),
    # Schemas, expressions, options
    "a schema": (
        {"a.yaml": SHOP.replace("amount DECIMAL(10,2)", "amount DECIML(10,2)")},
        ["a.yaml:14:70 MZ018 The schema is not Spark DDL"],
        ["unknown type 'DECIML'"],
    ),
    "a column twice": (
        {"a.yaml": SHOP.replace("customer STRING", "ID STRING")},
        ["a.yaml:14:46 MZ018 The schema is not Spark DDL"],
        ["'ID' is declared twice"],
    ),
    "a schema over lines": (
        {
            "a.yaml": SHOP.replace(
                '{type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP"}',
                "\n      type: json\n      schema: |\n        id BIGINT,\n        customer STRNG\n",
            )
        },
        ["a.yaml:18:18 MZ018 The schema is not Spark DDL"],
        [],
    ),
    "an expression": (
        {"a.yaml": SHOP + "    select: [id, 'amount +']\n"},
        ["a.yaml:22:26 MZ019 Not a stateless Spark SQL expression"],
        ["syntax"],
    ),
    "an unknown column": (
        {"a.yaml": SHOP + "    select: [id, amunt * 2 AS twice]\n    where: amount > 0 AND custmer = 'x'\n"},
        ['a.yaml:22:18 MZ019 Unknown column "amunt"', 'a.yaml:23:27 MZ019 Unknown column "custmer"'],
        ['did you mean "amount"?', 'did you mean "customer"?'],
    ),
    "an aggregate": (
        {"a.yaml": SHOP + "    select: [id, sum(amount) AS total]\n"},
        ["a.yaml:22:18 MZ019 Not a stateless Spark SQL expression"],
        ["sum needs other rows"],
    ),
    "a condition that is more": (
        {"a.yaml": SHOP + "    where: amount > 0 GROUP BY id\n"},
        ["a.yaml:22:12 MZ019 Not a stateless Spark SQL expression"],
        ["more than one expression"],
    ),
    "an expression without a name": (
        {"a.yaml": SHOP + "    select: [id, amount * 2]\n"},
        ["a.yaml:22:18 MZ019 An expression without a name"],
        ["amount * 2 AS name"],
    ),
    "a column written twice": (
        {"a.yaml": SHOP + "    select: [id, amount AS ID]\n"},
        ['a.yaml:22:18 MZ019 The column "ID" is written twice'],
        [],
    ),
    "an unknown key column": (
        {"a.yaml": SHOP.replace("key: [id]", "key: [id, custmer]")},
        ['a.yaml:21:15 MZ020 Unknown key column "custmer"'],
        ['did you mean "customer"?'],
    ),
    "a key that is not selected": (
        {"a.yaml": SHOP + "    select: [amount]\n"},
        ['a.yaml:21:11 MZ020 Unknown key column "id"'],
        ["writes the columns amount"],
    ),
    "a partition column that is not written": (
        {"a.yaml": LAKE + "select: [id, amount], partition_by: [id, custmer]}\n"},
        ['a.yaml:22:93 MZ020 Unknown partition column "custmer"'],
        ["writes the columns id, amount"],
    ),
    "partition columns that leave nothing": (
        {"a.yaml": LAKE + "select: [id, amount], partition_by: [amount, ID]}\n"},
        ["a.yaml:22:74 MZ020 Nothing is left for the files"],
        ["name some of the columns"],
    ),
    "a partition column twice": (
        {"a.yaml": LAKE + "partition_by: [id, ID]}\n"},
        ["a.yaml:22:52 MZ020 A partition column is named twice"],
        [],
    ),
    "upsert without a key": (
        {"a.yaml": SHOP.replace("    key: [id]\n", "")},
        ['a.yaml:20:11 MZ006 Missing key "key"'],
        ["add `key: [COLUMN]`"],
    ),
    "a key without upsert": (
        {"a.yaml": SHOP.replace("    mode: upsert\n", "")},
        ["a.yaml:20:5 MZ020 A key without the mode upsert"],
        [],
    ),
    "sasl without its protocol": (
        {
            "a.yaml": SHOP.replace(
                '["localhost:9092"]}',
                '["localhost:9092"], security: {sasl: {mechanism: PLAIN, username: a, password: "${env:P}"}}}',  # noqa: E501
            )
        },
        ["a.yaml:2:69 MZ020 SASL credentials without a SASL protocol"],
        ["SASL_SSL"],
    ),
    "a sasl protocol without credentials": (
        {"a.yaml": SHOP.replace('9092"]}', '9092"], security: {protocol: SASL_SSL}}')},
        ["a.yaml:2:79 MZ020 A SASL protocol without credentials"],
        [],
    ),
    "tls files without tls": (
        {"a.yaml": SHOP.replace('9092"]}', '9092"], security: {ssl: {ca: a.pem}}}')},
        ["a.yaml:2:69 MZ020 TLS files without a TLS protocol"],
        ["not be encrypted"],
    ),
    "certificates that nobody checks": (
        {"a.yaml": SHOP.replace("user: app", "user: app\n    tls: {ca: a.pem}")},
        ["a.yaml:8:15 MZ020 Trusted certificates that nothing checks"],
        ["verify-full"],
    ),
    "moved from what is still there": (
        {"a.yaml": SHOP.replace("topic: orders", "topic: orders\n    lifecycle: {moved_from: orders}")},
        ["a.yaml:14:29 MZ020 moved_from names a resource that is still declared"],
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_error_at_its_place(name: str, tmp_path: Path) -> None:
    files, expected, words = CASES[name]
    found = errors(tmp_path, files)
    assert brief(found) == expected
    for word in words:
        assert word in "\n".join(f"{d.detail} {d.hint}" for d in found)
    for diagnostic in found:
        assert diagnostic.hint, "every error says how to fix it"
        assert diagnostic.range is not None and diagnostic.excerpt is not None
        assert "\x00" not in all_text(found)


def test_a_key_of_the_type_that_is_not_the_default(tmp_path: Path) -> None:
    text = (
        "connections:\n  lake: {type: files, path: lake}\n"
        "sources:\n  orders: {connection: lake, path: in, format: {type: json, schema: id BIGINT}}\n"
        "sinks:\n  out: {from: orders, connection: lake, path: out, format: {type: json}}\n"
    )
    (found,) = errors(tmp_path, {"a.yaml": text})
    assert found.code == "MZ004" and "add `type: files`" in found.hint
    assert errors(tmp_path, {"a.yaml": text.replace("out: {", "out: {type: files, ")}) == []


def test_the_shop_is_right(tmp_path: Path) -> None:
    assert errors(tmp_path, {"a.yaml": SHOP}) == []


def test_the_example_of_the_interface(tmp_path: Path) -> None:
    """The layout of interface.md, word for word."""
    from mzplan.render.diagnostics import render_diagnostics

    lines = ["connections: {}", "", "# orders come from the shop", "", "", "", "", "", "", "", "sources:", ""]
    (tmp_path / "examples/orders").mkdir(parents=True)
    write(
        tmp_path / "examples/orders",
        {
            "connections.yaml": "connections:\n\n  kafka_prod: {type: kafka, brokers: ['a:1']}\n",
            "sources.yaml": "\n".join(
                [*lines, "  orders:", "    connection: kafka_prd", "    topic: orders"]
            ),
        },
    )
    found = errors(tmp_path / "examples/orders")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        text = render_diagnostics(found, False, str(tmp_path / "examples/orders"))
    assert text == (
        "examples/orders/sources.yaml:14:17: error[MZ012]: Unknown connection\n"
        "   14 |     connection: kafka_prd\n"
        "      |                 ^^^^^^^^^\n"
        '  source.orders refers to "kafka_prd", which no file declares.\n'
        '  Fix: did you mean "kafka_prod" (connections.yaml:3:3)?'
    )


def test_all_errors_at_once_sorted_by_place(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "b.yaml": "sources:\n  y: {connection: nope, topic: t}\n  x: {connection: nix, topic: t}\n",
        "a.yaml": SHOP.replace("host: localhost", "host: 5").replace("key: [id]", "key: [idd]"),
        "mzplan.yaml": "version: 3\nproject: Shop\n",
    }
    found = brief(errors(tmp_path, files))
    assert [line.split()[:2] for line in found] == [
        ["a.yaml:5:11", "MZ005"],
        ["a.yaml:21:11", "MZ020"],
        ["b.yaml:2:19", "MZ012"],
        ["b.yaml:3:19", "MZ012"],
        ["mzplan.yaml:1:10", "MZ005"],
        ["mzplan.yaml:2:10", "MZ005"],
    ]


def test_a_file_that_is_broken_makes_no_other_errors(tmp_path: Path) -> None:
    """What a broken file declares is not known: nobody is told that it is missing."""
    connections, rest = SHOP.split("sources:")
    found = errors(tmp_path, {"a.yaml": connections + "  x: [\n", "b.yaml": "sources:" + rest})
    assert [d.code for d in found] == ["MZ002"]


def test_no_project(tmp_path: Path) -> None:
    with pytest.raises(MzplanError) as caught:
        load_configuration(tmp_path)
    (found,) = caught.value.diagnostics
    assert found.code == "MZ010" and found.range is None and "mzplan init" in found.hint
    write(tmp_path, {})
    (tmp_path / "sources").mkdir()
    with pytest.raises(MzplanError) as caught:
        load_configuration(tmp_path / "sources")
    # Right wherever the command was typed, which need not be the folder that it named.
    assert caught.value.diagnostics[0].hint == f"the project may be the folder above: mzplan -C {tmp_path} …"
    (tmp_path / "sources" / "mzplan.yml").write_text(PROJECT)
    with pytest.raises(MzplanError) as caught:
        load_configuration(tmp_path / "nowhere")
    assert caught.value.diagnostics[0].code == "MZ010"


def test_more_errors_than_anyone_reads(tmp_path: Path) -> None:
    sources = "\n".join(f"  s{i}: {{connection: nope, topic: t}}" for i in range(3000))
    found = errors(tmp_path, {"a.yaml": f"sources:\n{sources}\n"})
    assert len(found) == 1001
    assert found[-1].severity == "notice" and found[-1].code == "MZ007"
    assert found[-1].summary == "mzplan stopped after 1000 errors; there are more"


def test_excerpts_of_windows_lines_wide_characters_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "sources:\r\n  x: {connection: '日本', topic: t, description: \"é😀\"}\r\n"
    (found,) = errors(tmp_path, {"a.yaml": b"\xef\xbb\xbf" + text.encode()})
    assert brief([found]) == ["a.yaml:2:19 MZ012 Unknown connection"]
    assert found.excerpt == "  x: {connection: '日本', topic: t, description: \"é😀\"}"
    assert found.range is not None and found.range.end_column == 23
