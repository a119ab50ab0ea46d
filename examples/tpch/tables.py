"""The tables of TPC-H and their refreshes as JSON lines; equal seeds give equal rows.

    python tables.py data                 # a file for each table in the folder data
    python tables.py data --refresh 1     # the first refresh: rows to insert (RF1), and keys to delete (RF2)

The columns and kinds of values are those of dbgen. So that each query has rows over small tables, some parts
and orders are those that the queries ask for.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_NATIONS = {
    "AFRICA": ("ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"),
    "AMERICA": ("ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"),
    "ASIA": ("CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"),
    "EUROPE": ("FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"),
    "MIDDLE EAST": ("EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"),
}
_NUMBER_OF_NATIONS = 25
_COLORS = ("almond", "azure", "blue", "coral", "forest", "green", "ivory", "lemon", "navy", "pink", "red")
_TYPES = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
_CONTAINERS = (
    ("SM", "LG", "MED", "JUMBO", "WRAP"),
    ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"),
)
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_WORDS = ("carefully", "deposits", "express", "final", "ideas", "ironic", "packages", "quickly", "sleep")
# Every fourth part is one of these, which the queries ask for.
_ASKED_FOR: Sequence[Row] = (
    {"p_size": 15, "p_type": "LARGE PLATED BRASS"},  # q2
    {"p_type": "ECONOMY ANODIZED STEEL"},  # q8
    {"p_brand": "Brand#23", "p_container": "MED BOX", "p_size": 3},  # q17, q19
    {"p_brand": "Brand#12", "p_container": "SM CASE", "p_size": 2},  # q19
    {"p_name": "forest green"},  # q9, q20
)
_FIRST_DAY, _LAST_DAY, _TODAY = date(1992, 1, 1), date(1998, 8, 2), date(1995, 6, 17)
_SUPPLIERS_OF_A_PART = 4


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of rows. An order has one to seven lines."""

    suppliers: int = 50
    parts: int = 200
    customers: int = 150
    orders: int = 1500
    orders_of_a_refresh: int = 15


SMALL = Size()


@dataclass(frozen=True, slots=True)
class Refresh:
    """The rows that RF1 inserts and the keys of the rows that RF2 deletes, by table."""

    inserts: Mapping[str, Sequence[Row]]
    deletes: Mapping[str, Sequence[Row]]


def tables(size: Size = SMALL, *, seed: int = 7) -> dict[str, list[Row]]:
    """Return the rows of all tables."""
    chance = random.Random(seed)
    parts = [_part(key, chance) for key in range(1, size.parts + 1)]
    orders, lines = _orders(range(1, size.orders + 1), size, seed)
    return {
        "region": [
            {"r_regionkey": number, "r_name": name, "r_comment": _text(chance)}
            for number, name in enumerate(_NATIONS)
        ],
        "nation": [*_nations(chance)],
        "supplier": [_supplier(key, chance) for key in range(1, size.suppliers + 1)],
        "part": parts,
        "partsupp": [row for part in parts for row in _suppliers_of(part["p_partkey"], size, chance)],
        "customer": [_customer(key, chance) for key in range(1, size.customers + 1)],
        "orders": orders,
        "lineitem": lines,
    }


def refresh(number: int, size: Size = SMALL, *, seed: int = 7) -> Refresh:
    """Return a refresh: new orders, and as many of the oldest ones. The first has the number 1."""
    many = size.orders_of_a_refresh
    first = size.orders + (number - 1) * many + 1
    orders, lines = _orders(range(first, first + many), size, seed)
    gone, gone_lines = _orders(range((number - 1) * many + 1, number * many + 1), size, seed)
    return Refresh(
        inserts={"orders": orders, "lineitem": lines},
        deletes={
            "orders": [{"o_orderkey": order["o_orderkey"]} for order in gone],
            "lineitem": [{key: line[key] for key in ("l_orderkey", "l_linenumber")} for line in gone_lines],
        },
    )


def _nations(chance: random.Random) -> Iterator[Row]:
    regions = ((region, name) for region, names in enumerate(_NATIONS.values()) for name in names)
    for number, (region, name) in enumerate(regions):
        yield {"n_nationkey": number, "n_name": name, "n_regionkey": region, "n_comment": _text(chance)}


def _supplier(key: int, chance: random.Random) -> Row:
    nation = key % _NUMBER_OF_NATIONS
    comment = _text(chance)
    return {
        "s_suppkey": key,
        "s_name": f"Supplier#{key:09}",
        "s_address": f"{key} Main Street",
        "s_nationkey": nation,
        "s_phone": _phone(nation, chance),
        "s_acctbal": _money(chance, -999, 9999),
        "s_comment": f"{comment} Customer {comment} Complaints" if key % 10 == 5 else comment,
    }


def _part(key: int, chance: random.Random) -> Row:
    maker = chance.randrange(1, 6)
    row = {
        "p_partkey": key,
        "p_name": " ".join(chance.sample(_COLORS, 3)),
        "p_mfgr": f"Manufacturer#{maker}",
        "p_brand": f"Brand#{maker}{chance.randrange(1, 6)}",
        "p_type": " ".join(map(chance.choice, _TYPES)),
        "p_size": chance.randrange(1, 51),
        "p_container": " ".join(map(chance.choice, _CONTAINERS)),
        "p_retailprice": _price(key),
        "p_comment": _text(chance),
    }
    return row | _ASKED_FOR[key // 4 % len(_ASKED_FOR)] if key % 4 == 0 else row


def _suppliers_of(part: int, size: Size, chance: random.Random) -> Iterator[Row]:
    for supplier in _supplier_keys(part, size):
        yield {
            "ps_partkey": part,
            "ps_suppkey": supplier,
            "ps_availqty": chance.randrange(1, 10_000),
            "ps_supplycost": _money(chance, 1, 1000),
            "ps_comment": _text(chance),
        }


def _supplier_keys(part: int, size: Size) -> list[int]:
    """Return the suppliers of a part."""
    return [(part // 4 + number * 7) % size.suppliers + 1 for number in range(_SUPPLIERS_OF_A_PART)]


def _customer(key: int, chance: random.Random) -> Row:
    nation = key % _NUMBER_OF_NATIONS
    return {
        "c_custkey": key,
        "c_name": f"Customer#{key:09}",
        "c_address": f"{key} Long Road",
        "c_nationkey": nation,
        "c_phone": _phone(nation, chance),
        "c_acctbal": _money(chance, -999, 9999),
        "c_mktsegment": chance.choice(_SEGMENTS),
        "c_comment": _text(chance),
    }


def _orders(keys: Sequence[int], size: Size, seed: int) -> tuple[list[Row], list[Row]]:
    """Return orders and their lines. An order depends on its key and the seed only."""
    orders, lines = [], []
    for key in keys:
        chance = random.Random(seed * 1_000_003 + key)
        customer = chance.randrange(1, size.customers + 1)
        day = _FIRST_DAY + timedelta(days=chance.randrange((_LAST_DAY - _FIRST_DAY).days + 1))
        is_large = key % 20 == 10  # for q18
        count = 7 if is_large else chance.randrange(1, 8)
        own = [_line(key, number, day, is_large, size, chance) for number in range(1, count + 1)]
        states = {line["l_linestatus"] for line in own}
        orders.append(
            {
                "o_orderkey": key,
                "o_custkey": customer - 1 if customer % 3 == 0 else customer,  # a third has no orders
                "o_orderstatus": states.pop() if len(states) == 1 else "P",
                "o_totalprice": f"{sum(float(line['l_extendedprice']) for line in own):.2f}",
                "o_orderdate": day.isoformat(),
                "o_orderpriority": chance.choice(_PRIORITIES),
                "o_clerk": f"Clerk#{chance.randrange(1, 100):09}",
                "o_shippriority": 0,
                "o_comment": "special packages and requests" if key % 25 == 0 else _text(chance),
            }
        )
        lines += own
    return orders, lines


def _line(order: int, number: int, day: date, is_large: bool, size: Size, chance: random.Random) -> Row:
    part = chance.randrange(1, size.parts + 1)
    quantity = chance.randrange(45 if is_large else 1, 51)
    shipped = day + timedelta(days=chance.randrange(1, 122))
    received = shipped + timedelta(days=chance.randrange(1, 31))
    return {
        "l_orderkey": order,
        "l_partkey": part,
        "l_suppkey": chance.choice(_supplier_keys(part, size)),
        "l_linenumber": number,
        "l_quantity": quantity,
        "l_extendedprice": f"{quantity * float(_price(part)):.2f}",
        "l_discount": f"0.{chance.randrange(11):02}",
        "l_tax": f"0.{chance.randrange(9):02}",
        "l_returnflag": chance.choice("AR") if received <= _TODAY else "N",
        "l_linestatus": "O" if shipped > _TODAY else "F",
        "l_shipdate": shipped.isoformat(),
        "l_commitdate": (day + timedelta(days=chance.randrange(30, 91))).isoformat(),
        "l_receiptdate": received.isoformat(),
        "l_shipinstruct": chance.choice(_INSTRUCTIONS),
        "l_shipmode": chance.choice(_MODES),
        "l_comment": _text(chance),
    }


def _phone(nation: int, chance: random.Random) -> str:
    numbers = chance.randrange(100, 1000), chance.randrange(100, 1000), chance.randrange(1000, 10_000)
    return "-".join(map(str, (nation + 10, *numbers)))


def _price(part: int) -> str:
    return f"{900 + part % 200 + part % 1000 / 10:.2f}"


def _money(chance: random.Random, least: int, most: int) -> str:
    return f"{chance.randrange(least, most)}.{chance.randrange(100):02}"


def _text(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=4))


def write(folder: Path, rows: Mapping[str, Sequence[Row]], suffix: str = "") -> None:
    """Write a file of JSON lines for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, of_table in rows.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in of_table)
        (folder / f"{name}{suffix}.jsonl").write_text(lines, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write TPC-H's tables, or one of their refreshes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--refresh", type=int, metavar="N", help="write the N-th refresh; the first is 1")
    given = parser.parse_args()
    if given.refresh is None:
        write(given.folder, tables())
        return
    done = refresh(given.refresh)
    write(given.folder, done.inserts, ".insert")
    write(given.folder, done.deletes, ".delete")


if __name__ == "__main__":
    main()
