"""The events of Nexmark: 1 person, 3 auctions and 46 bids in every 50; equal seeds give equal events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

Event = tuple[str, dict[str, Any]]
"""A topic, and the value of a record for it."""

BEGIN = datetime(2026, 1, 1, 8, tzinfo=UTC)
_STATES = ("az", "ca", "id", "or", "wa", "wy")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def events(number: int, *, seed: int = 7, per_second: int = 100) -> Iterator[Event]:
    """Yield `number` events in order of their times, `per_second` of them in each second."""
    chance = random.Random(seed)
    people, auctions = 0, 0
    for event in range(number):
        at = BEGIN + timedelta(seconds=event / per_second)
        place = event % 50
        if place == 0:
            yield "person", _person(people, at, chance)
            people += 1
        elif place <= 3:
            yield "auction", _auction(auctions, people, at, chance)
            auctions += 1
        else:
            yield "bid", _bid(auctions, people, at, chance)


def end(number: int, *, per_second: int = 100) -> Iterator[Event]:
    """Yield a person, an auction and a bid one day later, which close all windows of these events."""
    at = BEGIN + timedelta(days=1, seconds=number / per_second)
    chance = random.Random(0)
    yield "person", _person(10**9, at, chance)
    yield "auction", _auction(10**9, 0, at, chance) | {"category": 0, "seller": -1}
    yield "bid", _bid(1, 1, at, chance) | {"auction": -1, "price": 1}


def _person(id_: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    place = chance.randrange(len(_STATES))
    return {
        "id": id_,
        "name": f"person {id_}",
        "email": f"{id_}@example.com",
        "city": _CITIES[place],
        "state": _STATES[place],
        "date_time": _text(at),
        "extra": "",
    }


def _auction(id_: int, people: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    return {
        "id": id_,
        "item": f"item {id_}",
        "initial_bid": chance.randrange(1, 1000),
        "reserve": chance.randrange(1000, 10_000),
        "date_time": _text(at),
        "expires": _text(at + timedelta(seconds=chance.randrange(5, 30))),
        "seller": chance.randrange(max(0, people - 20), max(1, people)),
        "category": 10 + chance.randrange(5),
        "extra": "",
    }


def _bid(auctions: int, people: int, at: datetime, chance: random.Random) -> dict[str, Any]:
    auction = chance.randrange(max(0, auctions - 30), max(1, auctions))
    return {
        "auction": auction,
        "bidder": chance.randrange(max(1, people)),
        "price": int(10 ** chance.uniform(2, 8)),
        "channel": chance.choice(_CHANNELS),
        "url": f"https://www.nexmark.com/{auction % 7}/item/{auction}.htm",
        "date_time": _text(at),
        "extra": "c" * chance.randrange(4),
    }


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
