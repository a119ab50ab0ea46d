"""`proto_file`: definitions of Protobuf in the project, whose texts are committed with the source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, brief, errors, write

SOURCE = """\
connections: {k: {type: kafka, brokers: ["h:9092"]}, r: {type: schema-registry, url: "http://r:1"}}
sources:
  orders:
    connection: k
    topic: t
    format: {type: protobuf, message: shop.Order, proto_file: FILE, schema: "id BIGINT"}
"""
ORDER = """\
syntax = "proto3"; // import "gone.proto";
/* import "gone.proto"; */
import public 'common/money.proto';
import "google/protobuf/timestamp.proto";
message Order { string site = 1 [default = "http://x"]; }
"""
MONEY = 'import "common/base.proto";\nmessage Money {}\n'
BASE = 'import "common/money.proto";\n'  # a circle, which protoc will refuse


def project(folder: Path, file: str = "protos/shop/order.proto", **files: str) -> Path:
    return write(folder, {"mzplan.yaml": DRY, "a.yaml": SOURCE.replace("FILE", file), **files})


def texts(folder: str) -> dict[str, str]:
    return {
        f"{folder}shop/order.proto": ORDER,
        f"{folder}common/money.proto": MONEY,
        f"{folder}common/base.proto": BASE,
    }


@pytest.mark.parametrize("folder", ["protos/", "", "a/b/../b//"])
def test_a_definition_is_committed_with_its_imports(tmp_path: Path, folder: str) -> None:
    project(tmp_path, f"{folder}shop/order.proto", **texts(folder.replace("b/../", "").replace("//", "/")))
    before = set(sys.modules)
    assert mzplan(tmp_path, "validate").code == 0
    apply(tmp_path)
    assert planned_effects(tmp_path) == {}
    proto = mzplan(tmp_path, "state", "show", "source.orders").json()["body"]["format"]["proto"]
    assert proto == texts("") and "grpc_tools" not in set(sys.modules) - before
    file = tmp_path / folder / "common/money.proto"
    file.write_text(MONEY.replace("{}", "{ int64 units = 1; }"))
    assert planned_effects(tmp_path) == {"source.orders": "restart"}
    assert "- message Money {}\n" in mzplan(tmp_path, "plan").out


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "6:63 MZ001 Can't read protos/shop/order.proto"),
        ({"protos/shop/order.proto": ORDER}, '6:63 MZ415 order.proto imports "common/money.proto"'),
        (
            {"protos/shop/order.proto": ORDER, "protos/common/money.proto": MONEY},
            '6:63 MZ415 common/money.proto imports "common/base.proto"',
        ),
        (
            {"protos/shop/order.proto": 'import "../../../x.proto";'},
            '6:63 MZ415 order.proto imports "../../../x.proto"',
        ),
        (
            {
                "protos/shop/order.proto": ORDER,
                "protos/common/money.proto": 'import "./common/money.proto";',
            },
            '6:63 MZ415 common/money.proto imports "./common/money.proto"',
        ),
        ({"protos/shop/order.proto": f'x; import "{"a" * 300}.proto";'}, "6:63 MZ415 order.proto imports"),
        ({"protos/shop/order.proto": "/*" * 50_000 + "\n" * 200_000 + "x"}, "6:63 MZ415 protos/shop"),
        ({"protos/shop/order.proto": "x" * 300_000}, "6:63 MZ415 protos/shop/order.proto is too long"),
    ],
)
def test_a_definition_that_cannot_be_read_is_an_error(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    (found,) = brief(errors(project(tmp_path, **files)))
    assert found.startswith(f"a.yaml:{expected}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("proto_file: FILE, ", "", "MZ006 A protobuf format without its message"),
        ("message: shop.Order, ", "", "MZ006 A protobuf format without its message"),
        ("topic: t", "topic: t\n    schema_registry: r", "MZ020 A definition beside a schema registry"),
        ("type: protobuf", "type: json", "MZ020 Options of protobuf in another format"),
        ("FILE", "../order.proto", "MZ001"),
        ("schema:", "proto: {}, schema:", "MZ004"),
        ("topic: t", "topic: t\n    envelope: {type: debezium, key: [id]}", "MZ020 Debezium's envelope in"),
    ],
)
def test_a_format_that_makes_no_sense_is_an_error(tmp_path: Path, old: str, new: str, expected: str) -> None:
    yaml = SOURCE.replace(old, new).replace("FILE", "shop/order.proto")
    found = errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": yaml, **texts("")})
    assert len(found) == 1 and brief(found)[0].partition(" ")[2].startswith(expected), found


def test_a_registry_needs_no_message(tmp_path: Path) -> None:
    format_ = '    schema_registry: r\n    format: {type: protobuf, schema: "id BIGINT"}\n'
    yaml = SOURCE[: SOURCE.index("    format:")] + format_
    assert mzplan(write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": yaml}), "validate").code == 0
