"""examples/nexmark on Kafka and Spark: each view has what some lines of Python make of the same events."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.nexmark.events import BEGIN, Event, end, events
from examples.servers import KafkaBroker, produce_json
from tests.support import Make, Project, eventually

EXAMPLE = Path(__file__).parents[3] / "examples" / "nexmark"
NUMBER = 5_000
KILLS = 5
TEN = timedelta(seconds=10)
Row = dict[str, Any]


class Oracle:
    """The events, and what each query makes of them: as tuples, in any order."""

    def __init__(self, happened: list[Event]):
        self.people, self.auctions, self.bids = (
            [_timed(value) for name, value in happened if name == topic]
            for topic in ("person", "auction", "bid")
        )
        self.bids_and_auctions = _joined(self.bids, "auction", self.auctions)
        self.auctions_and_sellers = _joined(self.auctions, "seller", self.people)

    def q0(self) -> list[tuple[Any, ...]]:
        return [(b["auction"], b["bidder"], b["price"], b["date_time"]) for b in self.bids]

    def q2(self) -> list[tuple[Any, ...]]:
        return [(b["auction"], b["price"]) for b in self.bids if b["auction"] % 123 == 0]

    def q3(self) -> list[tuple[Any, ...]]:
        sold = [(a, p) for a, p in self.auctions_and_sellers if a["category"] == 10]
        return [(p["name"], a["id"]) for a, p in sold if p["state"] in ("or", "id", "ca")]

    def q4(self) -> list[tuple[Any, ...]]:
        categories: dict[int, list[int]] = defaultdict(list)
        for auction, price in self._won():
            categories[auction["category"]].append(price)
        return [(category, round(_mean(prices), 3)) for category, prices in categories.items()]

    def q6(self) -> list[tuple[Any, ...]]:
        sellers: dict[int, list[int]] = defaultdict(list)
        averages = []
        for auction, price in sorted(self._won(), key=lambda won: (won[0]["expires"], won[0]["id"])):
            sellers[auction["seller"]].append(price)
            averages.append((auction["id"], round(_mean(sellers[auction["seller"]][-11:]), 3)))
        return averages

    def q5(self) -> list[tuple[Any, ...]]:
        slide = timedelta(seconds=2)
        counts = Counter((until, b["auction"]) for b in self.bids for until in _ends(b["date_time"], slide))
        best: dict[datetime, tuple[int, int]] = {}
        for (until, auction), n in counts.items():
            best[until] = max(best.get(until, (0, 0)), (n, auction))
        return [(until, n, auction) for until, (n, auction) in best.items()]

    def q7(self) -> list[tuple[Any, ...]]:
        highest: dict[datetime, int] = {}
        for bid in self.bids:
            (until,) = _ends(bid["date_time"], TEN)
            highest[until] = max(highest.get(until, 0), bid["price"])
        return [*highest.items()]

    def q8(self) -> list[tuple[Any, ...]]:
        pairs = self.auctions_and_sellers
        sellers = [p for a, p in pairs if _ends(p["date_time"], TEN) == _ends(a["date_time"], TEN)]
        return [*{(p["id"], p["name"]) for p in sellers}]

    def q9(self) -> list[tuple[Any, ...]]:
        return [(auction["id"], price) for auction, price in self._won()]

    def _won(self) -> list[tuple[Row, int]]:
        """The auctions with a bid, each with its highest."""
        won: dict[int, tuple[Row, int]] = {}
        for bid, auction in self.bids_and_auctions:
            if auction["date_time"] <= bid["date_time"] <= auction["expires"]:
                _, highest = won.get(auction["id"], (auction, 0))
                won[auction["id"]] = (auction, max(highest, bid["price"]))
        return [*won.values()]

    def q11(self) -> list[tuple[Any, ...]]:
        sessions: dict[int, list[int]] = {}
        last: dict[int, datetime] = {}
        for bid in sorted(self.bids, key=lambda bid: bid["date_time"]):
            bidder, at = bid["bidder"], bid["date_time"]
            if bidder not in last or at - last[bidder] >= TEN:
                sessions.setdefault(bidder, []).append(0)
            sessions[bidder][-1] += 1
            last[bidder] = at
        return [(bidder, bids) for bidder, counts in sessions.items() for bids in counts]

    def q15(self) -> list[tuple[Any, ...]]:
        return [_statistics(self.bids)]

    def q16(self) -> list[tuple[Any, ...]]:
        channels: dict[str, list[Row]] = defaultdict(list)
        for bid in self.bids:
            channels[bid["channel"]].append(bid)
        last = {channel: max(bid["date_time"] for bid in of) for channel, of in channels.items()}
        return [
            (channel, last[channel].strftime("%H:%M"), *_statistics(of)) for channel, of in channels.items()
        ]

    def q17(self) -> list[tuple[Any, ...]]:
        prices: dict[int, list[int]] = defaultdict(list)
        for bid in self.bids:
            prices[bid["auction"]].append(bid["price"])
        return [
            (auction, len(of), sum(p < 10_000 for p in of), min(of), max(of), sum(of))
            for auction, of in prices.items()
        ]

    def q18(self) -> list[tuple[Any, ...]]:
        last: dict[tuple[int, int], Row] = {}
        for bid in sorted(self.bids, key=lambda bid: bid["date_time"]):
            last[bid["auction"], bid["bidder"]] = bid
        return [(*key, bid["price"], bid["date_time"]) for key, bid in last.items()]

    def q19(self) -> list[tuple[Any, ...]]:
        auctions: dict[int, list[Row]] = defaultdict(list)
        for bid in sorted(self.bids, key=lambda bid: (-bid["price"], bid["date_time"])):
            auctions[bid["auction"]].append(bid)
        return [
            (auction, place, bid["price"], bid["bidder"])
            for auction, of in auctions.items()
            for place, bid in enumerate(of[:10], 1)
        ]

    def q20(self) -> list[tuple[Any, ...]]:
        found = [(b, a) for b, a in self.bids_and_auctions if a["category"] == 10]
        return [(b["auction"], b["bidder"], b["price"], a["item"]) for b, a in found]

    def q22(self) -> list[tuple[Any, ...]]:
        return [(b["auction"], b["price"], *b["url"].split("/")[3:6]) for b in self.bids]


COLUMNS = {
    "q0": "auction bidder price date_time",
    "q2": "auction price",
    "q3": "name id",
    "q4": "category price",
    "q5": "until bids auction",
    "q6": "id price",
    "q7": "until price",
    "q8": "id name",
    "q9": "id price",
    "q11": "bidder bids",
    "q15": "total_bids rank1_bids total_bidders rank2_bidders total_auctions rank3_auctions",
    "q16": "channel minute total_bids rank1_bids total_bidders rank2_bidders total_auctions rank3_auctions",
    "q17": "auction total_bids rank1_bids min_price max_price sum_price",
    "q18": "auction bidder price date_time",
    "q19": "auction rank_number price bidder",
    "q20": "auction bidder price item",
    "q22": "auction price dir1 dir2 dir3",
}
_TIMES = ("date_time", "expires", "until")


def _mean(prices: list[int]) -> float:
    return sum(prices) / len(prices)


def _statistics(bids: list[Row]) -> tuple[Any, ...]:
    """Numbers of bids, bidders and auctions: all, and some below or above a price."""
    low, high = [b for b in bids if b["price"] < 10_000], [b for b in bids if b["price"] >= 1_000_000]
    middle = [b for b in bids if 10_000 <= b["price"] < 1_000_000]
    bidders = [len({bid["bidder"] for bid in of}) for of in (bids, middle)]
    return (len(bids), len(low), *bidders, *(len({bid["auction"] for bid in of}) for of in (bids, high)))


def _timed(row: Row) -> Row:
    return {k: datetime.fromisoformat(v) if k in _TIMES else v for k, v in row.items()}


def _joined(rows: list[Row], column: str, others: list[Row]) -> list[tuple[Row, Row]]:
    """Return each row with the other row whose id is in its column, if there is one."""
    by_id = {other["id"]: other for other in others}
    return [(row, by_id[row[column]]) for row in rows if row[column] in by_id]


def _ends(at: datetime, slide: timedelta) -> list[datetime]:
    """The ends of the windows of 10 seconds that a time is in."""
    first = BEGIN + (at - BEGIN) // slide * slide + slide
    return [first + number * slide for number in range(TEN // slide)]


@pytest.fixture
def topics(topic: Make) -> dict[str, str]:
    return {name: topic(name, partitions=1) for name in ("person", "auction", "bid")}


@pytest.fixture
def nexmark(tmp_path: Path, kafka: KafkaBroker, topics: dict[str, str]) -> Iterator[Project]:
    project = Project(tmp_path / "p", "nexmark")
    text = (EXAMPLE / "sources.yaml").read_text().replace("localhost:19092", kafka.bootstrap)
    for name, topic in topics.items():
        text = text.replace(f"topic: {name}\n", f"topic: {topic}\n")
    project.write("sources", text)
    shutil.copy(EXAMPLE / "views.yaml", project.folder)
    yield project
    project.down()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_each_view_equals_the_same_query_over_all_events(
    nexmark: Project, kafka: KafkaBroker, topics: dict[str, str]
) -> None:
    """The runner is killed at random moments while it reads the second half."""
    nexmark.apply()
    happened = list(events(NUMBER))
    _send(kafka, topics, happened[: NUMBER // 2])
    eventually("the first half is read", lambda: _lag(nexmark) == 0)
    _send(kafka, topics, happened[NUMBER // 2 :])
    for _ in range(KILLS):
        time.sleep(random.uniform(0.5, 15))
        nexmark.kill_runner()
        nexmark.json("up")
    eventually("the second half is read", lambda: _lag(nexmark) == 0)
    _send(kafka, topics, list(end(NUMBER)))
    oracle = Oracle(happened)
    for name in COLUMNS:
        _await(nexmark, name, sorted(getattr(oracle, name)()))
    assert nexmark.json("drift")["drift"] == []


def _send(kafka: KafkaBroker, topics: dict[str, str], happened: list[Event]) -> None:
    for name, topic in topics.items():
        produce_json(kafka.bootstrap, topic, [value for of, value in happened if of == name])


def _lag(project: Project) -> int:
    return sum(int(query["lag"] or 0) for query in project.queries().values())


def _await(project: Project, name: str, expected: list[tuple[Any, ...]]) -> None:
    """Wait until a view has these rows, in any order. The error shows some that differ."""
    with contextlib.suppress(AssertionError):
        eventually(name, lambda: _rows(project, name, COLUMNS[name]) == expected, seconds=240)
    found, wanted = Counter(_rows(project, name, COLUMNS[name])), Counter(expected)
    more, lost = (found - wanted).most_common(5), (wanted - found).most_common(5)
    assert found == wanted, f"{name}: too many {more}, lost {lost}; {project.queries()[f'view.{name}']}"


def _rows(project: Project, view: str, columns: str) -> list[tuple[Any, ...]]:
    """The rows of a view, without those that the last events make."""
    done = project.run("snapshot", f"view.{view}", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = [_timed(json.loads(line)) for line in done.stdout.splitlines()]
    first, last = BEGIN.date().isoformat(), BEGIN + timedelta(hours=12)
    return sorted(
        tuple(_rounded(row[column]) for column in columns.split())
        for row in rows
        if row.get("auction") != -1 and row.get("id", 0) < 10**9 and row.get("until", BEGIN) < last
        if row.get("day", first) == first
    )


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
