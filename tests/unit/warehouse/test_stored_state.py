"""The state schemas in a checkpoint: Spark compares types by position, and so does mzplan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.warehouse.stored_state import StoredOperator, differences, stored_operators

Fields = list[tuple[str, Any, bool]]


def struct(fields: Fields) -> dict[str, Any]:
    listed = [{"name": n, "type": t, "nullable": null, "metadata": {}} for n, t, null in fields]
    return {"type": "struct", "fields": listed}


def write(folder: Path, keys: Fields, values: Fields, number: int = 0, name: str = "stateStoreSave") -> None:
    """Write the files of an operator as Spark does."""
    place = folder / "state" / str(number)
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 4}]
    content = {"operatorInfo": {"operatorId": number, "operatorName": name}, "stateStoreInfo": stores}
    (place / "_metadata").mkdir(parents=True)
    (place / "_metadata" / "metadata").write_text(f"v1\n{json.dumps(content)}")
    parts = [json.dumps(struct(fields), separators=(",", ":")).encode() for fields in (keys, values)]
    schema = b"\x00\x02v2" + b"".join(b"\0\0\0\1" + len(p).to_bytes(2, "big") + p for p in parts)
    (place / "0" / "_metadata").mkdir(parents=True)
    (place / "0" / "_metadata" / "schema").write_bytes(schema)


KEYS: Fields = [("customer", "string", True)]
VALUES: Fields = [("sum", "decimal(20,2)", True), ("isEmpty", "boolean", False)]


@pytest.mark.parametrize(
    ("keys", "values", "difference"),
    [
        (KEYS, VALUES, ""),
        ([("c", "string", False)], [("a", "decimal(20,2)", True), ("b", "boolean", False)], ""),
        (
            [("customer", "long", True)],
            VALUES,
            "operator 0 (aggregation) stores the keys (BIGINT) instead of (STRING)",
        ),
        (
            KEYS,
            [("sum", "decimal(20,2)", True), ("isEmpty", "boolean", True)],
            "operator 0 (aggregation) stores the values (DECIMAL(20,2), BOOLEAN) instead of "
            "(DECIMAL(20,2), BOOLEAN NOT NULL)",
        ),
        (
            [("w", struct([("start", "timestamp", True)]), True)],
            VALUES,
            "operator 0 (aggregation) stores the keys ((TIMESTAMP)) instead of (STRING)",
        ),
    ],
    ids=["same", "names", "keys", "nullable", "struct"],
)
def test_types_are_compared_by_position(
    tmp_path: Path, keys: Fields, values: Fields, difference: str
) -> None:
    write(tmp_path / "old", KEYS, VALUES)
    write(tmp_path / "new", keys, values)
    old, new = (stored_operators(str(tmp_path / name)) for name in ("old", "new"))
    assert (old[0].name, old[0].partitions) == ("stateStoreSave", 4)
    assert list(differences(old, new)) == ([difference] if difference else [])


def test_operators_are_compared_in_order(tmp_path: Path) -> None:
    write(tmp_path, KEYS, VALUES)
    write(tmp_path, KEYS, [], 1, "dedupe")
    both = stored_operators(str(tmp_path))
    (difference,) = differences(both[:1], both)
    assert difference == (
        "the operators that keep state were aggregation, and are aggregation, dropDuplicates"
    )
    assert list(differences((), ())) == [] and stored_operators(str(tmp_path / "none")) == ()
    assert list(differences(both, (StoredOperator("x", 1, {}),)))
