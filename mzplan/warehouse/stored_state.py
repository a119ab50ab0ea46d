"""The state schemas in a Spark checkpoint, read without Spark: operators, stores, and types by position.

<checkpoint>/state/<operator>/_metadata/metadata                       the operator's name and its stores
<checkpoint>/state/<operator>/<partition>[/<store>]/_metadata/schema   the keys and values of a store
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mzplan.warehouse.folder import decoding, open_folder

_DEFAULT = "default"  # the name of an operator's only store
_LARGEST = 100  # operators of a query
_PARTS = 2  # of a store's schema: its keys and its values
_SCHEMA = '{"type":"struct"'
_NAMES = {
    "dedupe": "dropDuplicates",
    "sessionWindowStateStoreSaveExec": "session aggregation",
    "stateStoreSave": "aggregation",
    "symmetricHashJoin": "join",
}


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """An operator that keeps state, as Spark recorded it.

    - `stores`: by store, the schemas of its keys and values, as Spark's JSON. Empty if they can't be read.
    """

    name: str
    partitions: int
    stores: Mapping[str, tuple[Any, ...]]

    @property
    def kind(self) -> str:
        """Spark's operator in words."""
        return _NAMES.get(self.name, self.name)

    @property
    def is_known(self) -> bool:
        """Whether `differences` compares all that the operator stores."""
        return self.name in _NAMES and all(len(schemas) == _PARTS for schemas in self.stores.values())


def stored_operators(spark: str) -> tuple[StoredOperator, ...]:
    """Return the operators of a checkpoint location, in Spark's order. Raises OSError."""
    return tuple(_operators(spark))


def _operators(spark: str) -> Iterator[StoredOperator]:
    for number in range(_LARGEST):
        place = f"{spark}/state/{number}"
        data = open_folder(f"{place}/_metadata").read("metadata")
        if data is None:
            return
        with decoding(f"{place}/_metadata/metadata"):
            content = json.loads(data.decode().partition("\n")[2])
            stores = {str(one["storeName"]): one["numPartitions"] for one in content["stateStoreInfo"]}
            name = str(content["operatorInfo"]["operatorName"])
        schemas = {store: _schemas(place, store) for store in stores}
        yield StoredOperator(name, int(next(iter(stores.values()), 0)), schemas)


def _schemas(place: str, store: str) -> tuple[Any, ...]:
    inner = "" if store == _DEFAULT else f"/{store}"
    data = open_folder(f"{place}/0{inner}/_metadata").read("schema")
    return tuple(_structs(data.decode(errors="replace"))) if data is not None else ()


def _structs(text: str) -> Iterator[Any]:
    """Yield the schemas in a file: binary lengths stand between them. Stops at a schema in several parts."""
    decoder, start = json.JSONDecoder(), text.find(_SCHEMA)
    while start >= 0:
        try:
            schema, end = decoder.raw_decode(text, start)
        except ValueError:
            return
        yield schema
        start = text.find(_SCHEMA, end)


def differences(
    stored: tuple[StoredOperator, ...], now: tuple[StoredOperator, ...], *, with_names: bool = False
) -> Iterator[str]:
    """Yield, as clauses, why Spark can't continue the operators in `stored` with the operators in `now`.

    As in Spark's own check, a value that was nullable may have become NOT NULL. Names count only
    `with_names`: Spark names a key after its column, and an aggregate after its function.
    """
    kinds = [[operator.kind for operator in operators] for operators in (stored, now)]
    if kinds[0] != kinds[1]:
        was, becomes = (", ".join(one) or "none" for one in kinds)
        yield f"the operators that keep state were {was}, and are {becomes}"
        return
    for number, (old, new) in enumerate(zip(stored, now, strict=True)):
        if old.stores.keys() != new.stores.keys():
            yield f"operator {number} ({new.kind}) has other stores"
            continue
        for store, schemas in old.stores.items():
            pairs = zip(("keys", "values"), schemas, new.stores[store], strict=False)
            for what, before, after in pairs:
                if not _fits(before, after):
                    yield (
                        f"operator {number} ({new.kind}) stores the {what} {_text(after)} instead of "
                        f"{_text(before)}"
                    )
                    break
                if with_names and _names(before) != _names(after):
                    yield (
                        f"operator {number} ({new.kind}) names the {what} {', '.join(_names(after))} "
                        f"instead of {', '.join(_names(before))}"
                    )


def _fits(stored: Any, now: Any) -> bool:
    """Return whether two types are equal but for names, and for columns that have become NOT NULL."""
    if not isinstance(stored, dict) or not isinstance(now, dict):
        return bool(stored == now)
    if stored.get("type") != now.get("type"):
        return False
    match stored.get("type"):
        case "struct":
            pairs = list(zip(stored["fields"], now["fields"], strict=False))
            same = len(stored["fields"]) == len(now["fields"])
            return same and all(
                (old["nullable"] or not new["nullable"]) and _fits(old["type"], new["type"])
                for old, new in pairs
            )
        case "array":
            nullable = stored["containsNull"] or not now["containsNull"]
            return nullable and _fits(stored["elementType"], now["elementType"])
        case "map":
            nullable = stored["valueContainsNull"] or not now["valueContainsNull"]
            parts = ("keyType", "valueType")
            return nullable and all(_fits(stored[part], now[part]) for part in parts)
    return bool(stored == now)


def _names(schema: Any) -> list[str]:
    """Return the names of a schema's columns in lower case, because Spark ignores their case."""
    return [str(field["name"]).lower() for field in schema.get("fields", ())]


def _text(type_: Any) -> str:
    """Return the types of a schema by position, for people."""
    if not isinstance(type_, dict):
        return {"long": "BIGINT", "integer": "INT"}.get(str(type_), str(type_).upper())
    match type_.get("type"):
        case "struct":
            fields = (
                f"{_text(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"
                for field in type_["fields"]
            )
            return f"({', '.join(fields)})"
        case "array":
            return f"ARRAY<{_text(type_['elementType'])}>"
        case "map":
            return f"MAP<{_text(type_['keyType'])}, {_text(type_['valueType'])}>"
    return str(type_.get("type")).upper()
