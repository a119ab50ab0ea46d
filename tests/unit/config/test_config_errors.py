"""Every mistake in a file: one error with its code, at its place, with its fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mzplan.config import load_configuration
from tests.support import refusal
from tests.unit.config_files import PROJECT, SHOP, all_text, brief, errors, write

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (MZ\d{3}): (.*?)(?=^##)", f"{PAGE}\n##", re.MULTILINE | re.DOTALL))


def shop(old: str, new: str) -> str:
    """The shop with one mistake."""
    assert old in SHOP
    return SHOP.replace(old, new)


def broker(rest: str) -> str:
    """The shop, whose connection to Kafka has another property."""
    return shop('["localhost:9092"]', f'["localhost:9092"], {rest}')


LAKE = SHOP + "  out: {from: orders, connection: lake, path: out, "
LABELS = "connections:\n  k: {type: kafka, brokers: ['a:1'], labels: {n: %s}}\n"
PORT = "host: localhost\n    port: "
SASL = 'security: {sasl: {mechanism: PLAIN, username: a, password: "${env:P}"}}'
START = "topic: orders\n    start_offsets: "
INSTANCES = PROJECT + "instances: {prod: {type: cluster}, ci: {type: dry}}\n"
TRANSLATED = "    on_upstream_change: translate-timestamp"
LETTERS = "    on_error: dead-letter\n    dead_letter: {path: d}"
MOVED = "topic: orders\n    lifecycle: {moved_from: orders}"
REPLACED = "sources:\n  s:\n    type: local\n    schema: id INT\n    lifecycle: {replace: from-collection}\n"
NO_READER = shop("files, path: ./lake", "aws") + "  x: {from: orders, connection: lake}\n"
STATE = PROJECT + "state: {backend: %s}\n"
SELECT = SHOP + "    select: "
LONG = "ä" * 32  # 64 bytes
READ = (
    SHOP[: SHOP.index("sinks")]
    + "  read: {connection: shop_pg, key: [id], tables: [%s], schema: 'id INT%s'}\n"
)
WHERE = SHOP + "    where: "
# The text of a file; place and code of its error; words of the error and of its fix
CASES: list[tuple[str, ...]] = [
    # Broken YAML
    ('connections:\n  k: {type: kafka, brokers: ["a:1]}\n', "2:30 MZ002", "close the quote"),
    ("connections:\n  k:\n    brokers: [a:1\nsources: {}\n", "3:14 MZ002", "`]`"),
    ("connections:\n\tk: {}\n", "2:1 MZ002", "tabs"),
    ("sources:\n  x:\n    description: a: b\n", "3:19 MZ002", "quotes"),
    ("sources:\n  x:\n    topic a\n    connection: b\n", "4:15 MZ002", "Broken YAML"),
    ("sources: {}\n---\nsinks: {}\n", "2:1 MZ002", "Several documents in one file", "file of its own"),
    ("sources: !!python/object:os.system {}\n", "1:10 MZ002", "remove the tag"),
    ("sources:\n  x: &base {}\n  y: *bas\n", "3:6 MZ002", "Unknown alias *bas", 'did you mean "base"?'),
    (LABELS % "99999999999999999999", "2:50 MZ002", "64 bits", "quote"),
    (LABELS % ".nan", "2:50 MZ002", "Unusable value"),
    (LABELS % '"a\\0b"', "2:50 MZ002", "U+0000"),
    ("sources:\n  ? [a, b]\n  : x\n", "2:5 MZ002", "A key that is not a word"),
    ("sinks:\n  <<: &x [1]\n", "2:12 MZ002", "merges mappings"),
    # Something twice
    ("connections:\n  k:\n    type: files\n    path: a\n    path: b\n", "5:5 MZ003", "a.yaml:4:5"),
    ("connections:\n  k: {type: files, path: a}\n  k: {type: files, path: b}\n", "3:3 MZ003", "a.yaml:2:3"),
    # Keys and values
    (broker("broker: x"), "2:58 MZ004", 'Unknown key "broker"', "brokers, description, labels"),
    (shop("brokers", "brokrs"), "2:29 MZ004", 'Unknown key "brokrs"', 'did you mean "brokers"?'),
    (REPLACED, "5:17 MZ004", "kafka, files, delta or postgres"),
    ("sources:\n  k:\n    conection: x\n    topic: t\n", "3:5 MZ004", 'did you mean "connection"?'),
    ("connections:\n  k:\n    typ: kafka\n", "3:5 MZ004", 'Unknown key "typ"', 'did you mean "type"?'),
    ("source:\n  x: {}\n", "1:1 MZ004", 'Unknown key "source"', 'did you mean "sources"?'),
    ("state: {path: x}\n", "1:1 MZ004", 'Unknown key "state"', "mzplan.yaml"),
    (PROJECT + "warehose: ./w\n", "3:1 MZ004", 'Unknown key "warehose"', 'did you mean "warehouse"?'),
    (STATE % "postgres, hots: h, database: d, user: u", "3:28 MZ004", 'did you mean "host"?'),
    (STATE % "etcd", "3:18 MZ005", "object-store"),
    (STATE % "object-store, url: bucket", "3:37 MZ005", "url"),
    (STATE % "postgres, host: h, database: d", "3:1 MZ006", 'Missing key "user"'),
    (shop("mode: upsert", "mode: upsert\n    paused: yes"), "21:13 MZ005", "write true"),
    (shop("host: localhost", PORT + "'5432'"), "6:11 MZ005", 'Wrong type for "port"', "without quotes"),
    (shop('["localhost:9092"]', "localhost:9092"), "2:38 MZ005", "[localhost:9092]"),
    (shop("localhost:9092", "localhost"), "2:39 MZ005", 'Wrong value for "brokers[0]"', '"broker:9092"'),
    (shop("host: localhost", PORT + "70000"), "6:11 MZ005", 'Wrong value for "port"', "write 65535 or less"),
    (shop("topic: orders", "topic: 010"), "13:12 MZ005", 'Wrong type for "topic"', 'put it in quotes: "010"'),
    (shop('["localhost:9092"]', "[]"), "2:29 MZ005", 'Wrong value for "brokers"', "at least one"),
    (shop("key: [id]", "key: [id, id]"), "21:5 MZ005", 'Wrong value for "key"', "duplicate"),
    (shop("topic: orders\n", START + "2026-02-30T08:00:00Z\n"), "14:20 MZ005", "or a time with its zone"),
    (shop("topic: orders\n", START + "latst\n"), "14:20 MZ005", 'did you mean "latest"?'),
    (shop("mode: upsert", "mode: upsrt"), "20:11 MZ005", 'Wrong value for "mode"', 'did you mean "upsert"?'),
    (shop("type: postgres", "type: postgresql\n    hostt: x"), "4:11 MZ005", 'did you mean "postgres"?'),
    ("sources:\n  x: 5\n", "2:3 MZ005", "source.x is not a mapping"),
    ("sources: [a, b]\n", "1:1 MZ005", 'Wrong type for "sources"', "found a list"),
    ("- a\n- b\n", "1:1 MZ005", "Not a configuration file"),
    (shop("    topic: orders\n", ""), "11:3 MZ006", 'Missing key "topic"', "add `topic:`"),
    (shop("topic: orders", "topic: orders\n    topics: [a]"), "14:5 MZ020", "Topics are named twice"),
    (shop("topic: orders", "topics: [a]\n    topic_pattern: a"), "13:5 MZ020", "Topics are named twice"),
    (shop("topic: orders", "topics: [a]\n" + TRANSLATED), "14:25 MZ020", "with several topics"),
    (shop("topic: orders", "topic_pattern: 'a.*'\n" + LETTERS), "14:15 MZ020", "Dead letters of several"),
    ("connections:\n  k: {path: x}\n", "2:3 MZ006", 'Missing key "type"', "files, kafka, postgres"),
    (shop("    connection: shop_kafka\n", ""), "11:3 MZ006", 'Missing key "connection"'),
    (broker("security: {protocol: SSL, ssl: {certificate: a.pem}}"), "2:84 MZ006", "must be set together"),
    # Names and references
    ("connections:\n  Shop-Kafka: {type: files, path: x}\n", "2:3 MZ011", "shop_kafka"),
    (PROJECT + "instances: {B-1: {type: dry}}\n", "3:13 MZ011", '"B-1" can\'t be a key here'),
    (shop("connection: shop_kafka", "connection: shop_kafk"), "12:17 MZ012", '"shop_kafka" (a.yaml:2:3)?'),
    (shop("from: orders", "from: nothing_like_it"), "17:11 MZ012", "declare it under `sources:`"),
    (shop("connection: shop_pg", "connection: orders"), "18:17 MZ012", "is a source (a.yaml:11:3)"),
    (INSTANCES + SHOP[: SHOP.index("sinks")], "14:3 MZ012", "declares: ci, prod.", "instance: ci"),
    (shop("connection: shop_pg\n", "connection: lake\n    type: postgres\n"), "18:17 MZ013", "of: shop_pg"),
    (NO_READER, "22:33 MZ013", "files, kafka, postgres"),
    (shop("public.orders", f"public.{LONG}"), "19:12 MZ005", "63 bytes", f"{LONG} has 64 bytes"),
    (shop("public.orders", f'\'"{LONG}"."a.b"\''), "19:12 MZ005", f"shorten it: {LONG} has"),
    (shop("public.orders", 'public."a"b'), "19:12 MZ005", "double quotes enclose a name"),
    (shop("public.orders", "shop.public.orders"), "19:12 MZ005", "table or schema.table"),
    (shop("user: app", f"user: {LONG}"), "7:11 MZ005", "63 bytes"),
    (shop("mode: upsert", f"mode: upsert\n    staging_schema: {LONG}"), "21:21 MZ005", "63 bytes"),
    (shop("mode: upsert", "mode: upsert\n    staging_schema: pg_own"), "21:21 MZ005", "begin with pg_"),
    (STATE % f"postgres, host: h, database: d, user: u, schema: {LONG}", "3:67 MZ005", "63 bytes"),
    (READ % (f"orders, public.{LONG}", ""), "15:59 MZ005", 'Wrong value for "tables[1]"', "63 bytes"),
    (READ % ("orders", f", {LONG} INT"), "15:68 MZ310", "63 bytes", f"{LONG} has 64 bytes"),
    (READ.replace("key", f"publication: {LONG}, key") % ("orders", ""), "15:44 MZ005", "63 bytes"),
    (
        READ.replace("key", "slot: My-Slot, key") % ("orders", ""),
        "15:37 MZ005",
        "lowercase letters, digits or _",
    ),
    (SELECT + f"[id, amount AS {'x' * 64}]\n", "22:5 MZ310", "x has 64 bytes", "AS SHORT_NAME"),
    (shop("amount DEC", f"{LONG} INT, amount DEC"), "17:11 MZ310", f"{LONG} has 64 bytes"),
    (shop("connection: shop_pg", "connection: [shop_pg]"), "18:5 MZ005", 'Wrong type for "connection"'),
    # Schemas, expressions, options
    (shop("amount DECIMAL(10,2)", "amount DECIML(10,2)"), "14:70 MZ018", "unknown type 'DECIML'"),
    (SELECT + "[id, 'amount +']\n", "22:26 MZ019", "syntax"),
    (WHERE + "amount > 0 AND custmer = 'x'\n", "22:27 MZ019", 'did you mean "customer"?'),
    (SELECT + "[id, amount * 2]\n", "22:18 MZ019", "amount * 2 AS name"),
    (SELECT + "[id, amount AS ID]\n", "22:18 MZ019", 'The column "ID" is written twice'),
    (shop("key: [id]", "key: [id, custmer]"), "21:15 MZ020", 'did you mean "customer"?'),
    (shop("key: [id]", "key: [idd, custmer]"), "21:11 MZ020", 'Unknown key columns "idd", "custmer"'),
    (SELECT + "[amount]\n", "21:11 MZ020", 'Unknown key column "id"', "writes the columns amount"),
    (LAKE + "select: [id, amount], partition_by: [amount, ID]}\n", "22:74 MZ020", "name some of the columns"),
    (LAKE + "partition_by: [id, ID]}\n", "22:52 MZ020", "A partition column is named twice"),
    (shop("    key: [id]\n", ""), "20:11 MZ006", 'Missing key "key"', "add `key: [COLUMN]`"),
    (shop("    mode: upsert\n", ""), "20:5 MZ020", "A key without the mode upsert"),
    (broker(SASL), "2:69 MZ020", "SASL credentials without a SASL protocol", "SASL_SSL"),
    (broker("security: {protocol: SASL_SSL}"), "2:79 MZ020", "A SASL protocol without credentials"),
    (broker("security: {ssl: {ca: a.pem}}"), "2:69 MZ020", "not be encrypted"),
    (shop("user: app", "user: app\n    tls: {ca: a.pem}"), "8:15 MZ020", "verify-full"),
    (shop("topic: orders", MOVED), "14:29 MZ020", "moved_from names a resource that is still declared"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} {case[2]}")
def test_a_mistake_is_one_error_at_its_place(case: tuple[str, ...], tmp_path: Path) -> None:
    text, place, *words = case
    file = "mzplan.yaml" if text.startswith("version:") else "a.yaml"
    (found,) = errors(tmp_path, {file: text})
    assert f"{found.range} {found.code}" == f"{file}:{place}"
    assert all(word in f"{found.summary} {found.detail} {found.hint}" for word in words), found
    assert found.hint, "every error says how to fix it"
    assert found.excerpt is not None and "\x00" not in all_text([found])


def test_a_name_twice_in_two_files_names_both_places(tmp_path: Path) -> None:
    text = "connections:\n  k: {type: files, path: a}\n"
    found = errors(tmp_path, {"a.yaml": text, "deep/b.yml": text.replace("  k", "\n  k")})
    assert brief(found) == ["deep/b.yml:3:3 MZ003 connection.k is declared twice"]
    assert "a.yaml:2:3" in found[0].detail


def test_two_sources_on_one_slot_of_one_database_are_an_error(tmp_path: Path) -> None:
    source = "{connection: %s, slot: %s, tables: [t], schema: id INT, key: [id]}\n"
    slots = {"one": ("shop_pg", "theirs"), "two": ("again", "theirs"), "three": ("again", "mine")}
    sources = "".join(f"  {name}: {source % slot}" for name, slot in slots.items())
    again = "  again: {type: postgres, host: localhost, database: d, user: b, password: '${env:B}'}\n"
    found = errors(tmp_path, {"a.yaml": SHOP, "b.yaml": f"connections:\n{again}sources:\n{sources}"})
    assert brief(found) == ['b.yaml:5:34 MZ020 Two sources read slot "theirs"']
    assert "source.one also reads it, at b.yaml:4:36" in found[0].detail
    assert "leave `slot` out" in found[0].hint


def test_a_key_of_the_type_that_is_not_the_default(tmp_path: Path) -> None:
    text = (
        "connections:\n  lake: {type: files, path: lake}\n"
        "sources:\n  orders: {connection: lake, path: in, format: {type: json, schema: id BIGINT}}\n"
        "sinks:\n  out: {from: orders, connection: lake, path: out, format: {type: json}}\n"
    )
    (found,) = errors(tmp_path, {"a.yaml": text})
    assert found.code == "MZ004" and "add `type: files`" in found.hint
    assert errors(tmp_path, {"a.yaml": text.replace("out: {", "out: {type: files, ")}) == []


def test_all_errors_are_reported_at_once_sorted_by_place(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "b.yaml": "sources:\n  y: {connection: nope, topic: t}\n  x: {connection: nix, topic: t}\n",
        "a.yaml": SHOP.replace("host: localhost", "host: 5").replace("key: [id]", "key: [idd]"),
        "mzplan.yaml": "version: 3\nproject: Shop\n",
    }
    found = errors(tmp_path, files)
    places = ["a.yaml:5:11", "a.yaml:21:11", "b.yaml:2:19", "b.yaml:3:19"]
    assert [str(d.range) for d in found] == [*places, "mzplan.yaml:1:10", "mzplan.yaml:2:10"]
    assert [d.code for d in found] == ["MZ005", "MZ020", "MZ012", "MZ012", "MZ005", "MZ005"]


def test_a_broken_file_hides_errors_about_its_declarations(tmp_path: Path) -> None:
    connections, rest = SHOP.split("sources:")
    found = errors(tmp_path, {"a.yaml": connections + "  x: [\n", "b.yaml": "sources:" + rest})
    assert [d.code for d in found] == ["MZ002"]


def test_a_folder_without_a_project_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    def problem(folder: Path) -> tuple[str, str]:
        found = refusal(lambda: load_configuration(folder))
        return found.code, found.hint

    code, hint = problem(tmp_path)
    assert code == "MZ010" and "mzplan init" in hint
    write(tmp_path, {"sources/a.sql": ""})
    # Right wherever the command was typed, which need not be the folder that it named.
    above = f"the project may be the folder above: mzplan -C {tmp_path} …"
    assert problem(tmp_path / "sources") == ("MZ010", above)
    for folder in (tmp_path / "nowhere", tmp_path / "mzplan.yaml", Path("a\0b")):
        assert problem(folder)[0] == "MZ010"


def test_excerpts_of_windows_lines_wide_characters_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "sources:\r\n  x: {connection: '日本', topic: t, description: \"é😀\"}\r\n"
    (found,) = errors(tmp_path, {"a.yaml": b"\xef\xbb\xbf" + text.encode()})
    assert brief([found]) == ["a.yaml:2:19 MZ012 Unknown connection"]
    assert found.excerpt == "  x: {connection: '日本', topic: t, description: \"é😀\"}"
    assert found.range is not None and found.range.end_column == 23


def test_every_code_has_a_cause_and_a_fix_in_the_docs() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "mzplan").rglob("*.py"))
    used = {code for text in texts for code in re.findall(r"MZ\d{3}(?!\d)", text)}
    assert used == set(SECTIONS)
    assert list(SECTIONS) == sorted(SECTIONS)
    parts = ("\n**Cause.** ", "\n**Fix.** ")
    assert not [code for code, text in SECTIONS.items() if not all(part in text for part in parts)]
