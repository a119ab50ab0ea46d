"""Relational views that run: windows, groups, joins and snapshots, across crashes."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.model.address import Address
from mzplan.model.losses import NOT_BEGUN, FirstCopy
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.rows.snapshot import SnapshotVersions, name_of
from tests.integration.spark.test_spark_keyed import send as send_changes
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually

ORDERS = "id BIGINT, customer STRING, amount BIGINT, ts TIMESTAMP"
PAYMENTS = "id BIGINT, paid BIGINT, ts TIMESTAMP"
CUSTOMERS = "customer STRING, city STRING"
WINDOW = "window(ts, '1 minute')"


class Shop:
    """Sources of JSON files, and views over them."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self.folder = lab.folder / f"in-{uuid.uuid4().hex[:8]}"
        self.sources: dict[str, Description] = {}

    def source(self, name: str, schema: str, **body: Any) -> None:
        inbox = self.folder / name
        inbox.mkdir(parents=True)
        source = self.lab.files_source(inbox, schema, **body)
        digest = f"1:{uuid.uuid4().hex}"  # by which what is recorded of its steps is told from that of others
        self.sources[name] = replace(source, address=Address("source", name), digest=digest)
        self.lab.start(self.sources[name])

    def add(self, name: str, *rows: str) -> None:
        """Add rows, each as JSON without its braces."""
        hidden = self.folder / name / f".{uuid.uuid4().hex}"
        hidden.write_text("".join(f"{{{row}}}\n" for row in rows))
        hidden.rename(hidden.with_name(f"{hidden.name[1:]}.json"))

    def view(self, sql: str, schema: str, reads: str, snapshots: str = "", **body: Any) -> Description:
        streams, tables = ([self.sources[name] for name in names.split()] for names in (reads, snapshots))
        return self.lab.view(sql, schema, streams, tables, partitions=2, **body)

    def with_cities(self, *customers: str) -> tuple[Description, Description]:
        """Customers, and a view that looks their cities up."""
        self.source("customers", CUSTOMERS)
        self.add("customers", *customers)
        eventually(
            "the customers are there", lambda: self.lab.count(self.sources["customers"]) == len(customers)
        )
        sql = "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer"
        return self.view(sql, "id BIGINT, city STRING", "orders", "customers"), self.sources["customers"]

    def rows(self, view: Description) -> list[tuple[Any, ...]]:
        rows = ([v for k, v in row.items() if k != "_position"] for row in self.lab.read(view))
        return sorted(map(tuple, rows), key=repr)

    def has(self, view: Description, *rows: tuple[Any, ...]) -> None:
        """Wait until the view has exactly these rows."""

        def holds() -> bool:
            report = self.lab.report(view)
            assert report.error is None, report.error
            return self.rows(view) == sorted(rows, key=repr)

        try:
            eventually("the view has its rows", holds, 90)
        except AssertionError:
            raise AssertionError(f"{self.rows(view)} instead of {sorted(rows, key=repr)}") from None


@pytest.fixture
def shop(lab: Lab) -> Shop:
    shop = Shop(lab)
    shop.source("orders", ORDERS)
    return shop


def order(id_: int, customer: str, amount: int, minute: int) -> str:
    at = f"2026-01-01T00:{minute:02}:10Z"
    return f'"id": {id_}, "customer": "{customer}", "amount": {amount}, "ts": "{at}"'


@pytest.mark.nightly
def test_no_row_of_merged_files_is_late(lab: Lab, shop: Shop) -> None:
    """Delta reads files in the order of their ages, and OPTIMIZE writes old rows to new files."""
    source, spark = shop.sources["orders"], lab.spark
    steps = [
        [order(1, "a", 5, 0)],
        *([order(id_, f"{minute}-{id_}", 1, minute) for id_ in range(1000)] for minute in (20, 21)),
        [order(2, "a", 7, 1)],
    ]
    rows = 0
    for step in steps:
        shop.add("orders", *step)
        rows += len(step)
        eventually("the step is there", lambda rows=rows: lab.count(source) == rows)  # type: ignore[misc]
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", "5000")  # leaves out the large files
    spark.sql(f"OPTIMIZE delta.`{lab._collection(source)}`")
    spark.conf.unset("spark.databricks.delta.optimize.minFileSize")
    view = shop.view(
        f"SELECT {WINDOW}.start AS at, sum(amount) AS total FROM orders GROUP BY {WINDOW}",
        "at TIMESTAMP, total BIGINT",
        "orders",
        watermarks={"orders": {"column": "ts", "delay": "1m"}},
        max_files_per_trigger=1,
    )
    lab.start(view)
    shop.add("orders", order(3, "a", 1, 40))
    eventually("the windows are closed", lambda: len(shop.rows(view)) >= 4)
    assert sorted(total for _, total in shop.rows(view)) == [5, 7, 1000, 1000]


def test_views_of_each_shape_continue_after_a_crash(lab: Lab, shop: Shop) -> None:
    """Windows, groups by key, a join and a union: each runs its last step again."""
    shop.source("payments", PAYMENTS)
    marks = {name: {"column": "ts", "delay": "1 minute"} for name in ("orders", "payments")}
    windows = shop.view(
        f"SELECT customer, unix_seconds({WINDOW}.start) AS at, sum(amount) AS total FROM orders "
        f"GROUP BY customer, {WINDOW}",
        "customer STRING, at BIGINT, total BIGINT",
        "orders",
        watermarks={"orders": marks["orders"]},
    )
    by_customer: dict[str, Any] = {"output": "update", "key": ["customer"]}
    groups = shop.view(
        "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
        "customer STRING, n BIGINT, total BIGINT",
        "orders",
        **by_customer,
    )
    several = shop.view(
        "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer, id",
        "customer STRING, total BIGINT",
        "orders",
        **by_customer,
    )
    joined = shop.view(
        "SELECT o.id, p.paid FROM orders o LEFT JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND "
        "o.ts + INTERVAL 1 MINUTE",
        "id BIGINT, paid BIGINT",
        "orders payments",
        watermarks=marks,
    )
    united = shop.view(
        "SELECT id FROM orders UNION ALL SELECT -id FROM payments", "id BIGINT", "orders payments"
    )
    shop.add("orders", order(1, "a", 5, 0), order(2, "a", 7, 0), order(3, "b", 1, 0), order(4, "a", 2, 1))
    shop.add("orders", order(5, "a", 1, 2), '"id": 6, "amount": 3, "ts": "2026-01-01T00:02:10Z"')
    shop.add("payments", '"id": 1, "paid": 9, "ts": "2026-01-01T00:00:20Z"')
    lab.start(windows, groups, several, joined, united)
    start = 1767225600
    closed = [("a", start, 12), ("b", start, 1)]
    shop.has(windows, *closed)
    shop.has(groups, ("a", 4, 15), ("b", 1, 1), (None, 1, 3))
    shop.has(joined, (1, 9))
    shop.has(united, *((id_,) for id_ in (1, 2, 3, 4, 5, 6, -1)))
    # The key of this view has several rows.
    lab.fails(several, "MZ019", "several rows for one key")
    assert lab.read(several) == []

    lab.finish(windows, groups, joined, united)
    for view in (windows, groups, joined):
        lab.undo_commit(view)
    # Another order of the inputs is another order of the sources in Spark's log.
    sql = "SELECT -id AS id FROM payments UNION ALL SELECT id FROM orders"
    united = replace(united, body={**united.body, "query": sql}, digest="1:b")
    untimed = '"id": 10, "customer": "z", "amount": 1'
    shop.add("orders", order(7, "a", 100, 0), order(8, "a", 3, 30), untimed)
    shop.add("payments", '"id": 9, "paid": 9, "ts": "2026-01-01T00:30:20Z"')
    lab.start(windows, groups, joined, united)
    # The first of the new orders is late for its window.
    shop.has(windows, *closed, ("a", start + 60, 2), ("a", start + 120, 1), (None, start + 120, 3))
    shop.has(groups, ("a", 6, 118), ("b", 1, 1), (None, 1, 3), ("z", 1, 1))
    shop.has(joined, (1, 9), *((id_, None) for id_ in range(2, 8)))
    shop.has(united, *((id_,) for id_ in (*range(1, 9), 10, -1, -9)))
    eventually("the late row is counted", lambda: lab.report(windows).late_rows == 1)
    report = lab.report(windows)
    assert report.null_time_rows == lab.report(joined).null_time_rows == 1
    assert report.step >= 2 and report.resumed is not None
    assert (report.state_rows, report.watermark_timestamp_seconds) == (1, start + 29 * 60 + 10)
    assert report.state_bytes is not None and report.state_bytes > 0
    state = lab.checkpoint(windows) / "spark" / "state" / "0"
    assert len([path for path in state.iterdir() if path.name.isdecimal()]) == 2
    assert list(state.glob("0/*.zip")) or list(state.glob("0/*.changelog"))  # of RocksDB


@pytest.mark.nightly
def test_a_collection_may_be_read_twice(lab: Lab, shop: Shop) -> None:
    view = shop.view(
        "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id",
        "id BIGINT, other BIGINT",
        "orders",
    )
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "a", 7, 0))
    shop.has(view, (1, 2))
    lab.stop(view)
    shop.add("orders", order(3, "a", 7, 0))
    eventually("a row waits", lambda: lab.waits(view) == {"steps": 1, "rows": 1})
    lab.start(view)
    shop.has(view, (1, 2), (1, 3), (2, 3))


@pytest.mark.nightly
def test_another_number_of_readings_continues_where_the_view_is(lab: Lab, shop: Shop) -> None:
    def sql(*factors: int) -> str:
        return " UNION ALL ".join(f"SELECT {factor} * id AS id FROM orders" for factor in factors)

    view, rows = shop.view(sql(1), "id BIGINT", "orders"), []
    for id_, factors in enumerate(([1], [1, 10, 100], [1, 10], [1000]), 1):
        lab.finish(*([view] if rows else []))
        view = lab.changed(view, query=sql(*factors))
        assert lab.codes(view) == []
        lab.start(view)
        shop.add("orders", order(id_, "a", 5, 0))
        rows += [(id_ * factor,) for factor in factors]
        shop.has(view, *rows)
    log = Checkpoint(str(lab.checkpoint(view))).log
    lab.finish(view)
    newest = log.newest()
    position = json.loads(log.lines(newest)[2])
    log._write_offsets(newest, [*log.lines(newest), json.dumps({**position, "reservoirVersion": 0})])
    assert lab.codes(view) == ["MZ320"] and lab.refused(view).code == "MZ320"


@pytest.mark.nightly
def test_a_step_that_runs_again_reads_the_same_snapshot(lab: Lab, shop: Shop) -> None:
    view, customers = shop.with_cities('"customer": "a", "city": "Bern"')
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "b", 7, 0))
    rows: list[tuple[Any, ...]] = [(1, "Bern"), (2, None)]
    shop.has(view, *rows)
    eventually("its steps are done", lambda: lab.checkpoint_done(view))
    shop.add("customers", '"customer": "b", "city": "Rome"')
    eventually("the other customer is there", lambda: lab.count(customers) == 2)
    shop.add("orders", order(3, "b", 5, 0))
    rows.append((3, "Rome"))
    shop.has(view, *rows)
    eventually("its steps are done", lambda: lab.checkpoint_done(view))
    last = lab.last_step(view)
    versions = SnapshotVersions(Checkpoint(str(lab.checkpoint(view))).folder)
    (newest,) = versions.at(last).values()
    assert versions.at(last) == {name_of(customers.place): newest}
    # As if the driver had been killed with the versions recorded and the rows not yet written.
    lab.stop(view)
    shop.add("orders", order(4, "c", 5, 0))
    shop.add("customers", '"customer": "c", "city": "Nice"')
    eventually("the third customer is there", lambda: lab.count(customers) == 3)
    versions.record(last + 1, {name_of(customers.place): newest})
    lab.start(view)
    rows.append((4, None))
    shop.has(view, *rows)
    shop.add("orders", order(5, "c", 5, 0))
    shop.has(view, *rows, (5, "Nice"))


@pytest.mark.nightly
def test_a_snapshot_whose_files_are_gone_is_read_as_it_is(lab: Lab, shop: Shop) -> None:
    """A view that was paused in a step for longer than files are kept."""
    view, customers = shop.with_cities('"customer": "a", "city": "Bern"', '"customer": "b", "city": "Rome"')
    table = lab._collection(customers)
    before = DeltaTable(str(table)).version()
    lab.spark.sql(f"DELETE FROM delta.`{table}` WHERE customer = 'b'")
    kept = {path.rpartition("/")[2] for path in DeltaTable(str(table)).file_uris()}
    for file in table.glob("*.parquet"):
        if file.name not in kept:
            file.unlink()
    SnapshotVersions(str(lab.checkpoint(view))).record(0, {name_of(customers.place): before})
    shop.add("orders", order(1, "a", 5, 0), order(2, "b", 7, 0))
    lab.start(view)
    shop.has(view, (1, "Bern"), (2, None))


def plan_step(lab: Lab, view: Description, source: Description) -> None:
    """Plan a step that reads all that the source has written, as a runner does that is then killed."""
    log, table = Checkpoint(str(lab.checkpoint(view))).log, DeltaTable(str(lab._collection(source)))
    assert log.unfinished() is None
    offset = json.loads(log.entry(log.committed()) or "")
    log.plan(json.dumps({**offset, "reservoirVersion": table.version() + 1, "index": -1}))


@pytest.mark.parametrize(
    "kinds",
    [
        ("a row view of a keyed collection", "a view with a snapshot"),
        pytest.param(("a row view", "a relational view"), marks=pytest.mark.nightly),
    ],
    ids=["of keys and a snapshot", "of rows"],
)
def test_a_step_is_finished_by_the_query_that_began_it(
    lab: Lab, shop: Shop, topic: Make, kinds: tuple[str, str]
) -> None:
    """The new query keeps fewer rows and has a column more."""
    shop.source("customers", CUSTOMERS)
    name = topic(partitions=1)
    orders = shop.sources["orders"]
    shop.sources["keyed"] = keyed = lab.kafka_source(
        name, "id BIGINT, customer STRING, amount BIGINT", envelope={"type": "upsert", "key": ["id"]}
    )
    lab.start(keyed)

    def add(*amounts: int) -> None:
        """An order of each amount, which is also its id."""
        shop.add("orders", *(order(amount, "a", amount, 0) for amount in amounts))
        changes = [{"id": amount, "customer": "a", "amount": amount} for amount in amounts]
        send_changes(lab, name, *((str(row["id"]), row) for row in changes))
        for source in (orders, keyed):
            eventually(
                f"{source.address} has {amounts}",
                lambda source=source: {*amounts} <= {row["id"] for row in lab.read(source)},  # type: ignore[misc]
            )

    def view(reads: str, tail: str = "", snapshots: str = "", **body: Any) -> Description:
        made = shop.view(f"SELECT id FROM {reads}{tail} WHERE amount > 0", "id BIGINT", reads, snapshots)
        if not tail:  # a view of rows, which names its one input otherwise
            del made.body["reads"]  # type: ignore[attr-defined]
            body["from"] = reads
        return replace(made, body={**made.body, **body})

    views = {
        "a row view": view("orders"),
        "a row view of a keyed collection": view("keyed", key=["id"]),
        "a relational view": view("orders", " LATERAL VIEW explode(array(1)) t AS one"),
        "a view with a snapshot": view("orders", " LEFT JOIN customers c USING (customer)", "customers"),
    }
    before = {kind: views[kind] for kind in kinds}
    add(5)
    lab.start(*before.values())
    for each in before.values():
        shop.has(each, (5,))
        lab.finish(each)
    add(7)
    after = {}
    for kind, each in before.items():
        plan_step(lab, each, keyed if "keyed" in kind else orders)
        query = each.body["query"].replace("SELECT id", "SELECT id, amount").replace("> 0", "> 100")
        wider = {"query": query, "schema": "id BIGINT, amount BIGINT"}
        after[kind] = replace(each, body={**each.body, **wider}, digest="1:b")
    add(9, 900)
    lab.start(*after.values())
    for each in after.values():
        shop.has(each, (5, None), (7, None), (900, 900))
        assert lab.report(each).warning is None


def test_the_first_copies_of_a_source_and_of_a_view(lab: Lab, shop: Shop) -> None:
    """One file a step; the view reads the last steps only if it runs."""
    inbox = shop.folder / "limited"
    inbox.mkdir(parents=True)
    source = replace(
        lab.files_source(inbox, CUSTOMERS, max_files_per_trigger=1), address=Address("source", "limited")
    )
    shop.sources["limited"] = source
    for number in range(3):
        shop.add("limited", f'"customer": "c{number}", "city": "x"')
    view = shop.view("SELECT customer FROM limited WHERE city = 'x'", "customer STRING", "limited")
    assert [lab.executor.first_copy(query) for query in (source, view)] == [NOT_BEGUN, NOT_BEGUN]
    lab.start(source, view)
    # Each micro-batch was as large as it may be, so nobody knows whether there are more files.
    copy = FirstCopy(read=(3,), ends=(3,))
    whole = [replace(copy, unit="file", is_behind=True), replace(copy, unit="step")]
    eventually("both are complete", lambda: [lab.executor.first_copy(q) for q in (source, view)] == whole, 90)
    lab.stop(view)
    shop.add("limited", '"customer": "c3", "city": "y"')
    eventually("the source has read it", lambda: lab.last_step(source) == 3, 90)
    assert lab.executor.first_copy(view) == FirstCopy(read=(3,), ends=(4,), unit="step")
    lab.start(view)
    eventually("it is complete", lambda: lab.executor.first_copy(view).is_complete(), 90)


def test_readers_continue_if_rows_of_a_collection_are_deleted_by_hand(lab: Lab, shop: Shop) -> None:
    """A sink, a view of rows, and a view with state."""
    shop.source("people", CUSTOMERS)
    people = shop.sources["people"]
    rows = shop.view("SELECT upper(customer) AS customer FROM people", "customer STRING", "people")
    sql = "SELECT city, count(*) AS n FROM people GROUP BY city"
    counts = shop.view(sql, "city STRING, n BIGINT", "people", output="update", key=["city"])
    sink = lab.delta_sink(people, shop.folder, "out")
    target = shop.folder / "out"
    shop.add("people", *(f'"customer": "c{n}", "city": "x{n % 2}"' for n in range(6)))
    lab.start(rows, counts, sink)
    shop.has(counts, ("x0", 3), ("x1", 3))
    eventually("the rows are there", lambda: len(shop.rows(rows)) == 6 == len(read_delta(target)), 90)
    done = DeltaTable(str(lab._collection(people))).delete("customer = 'c3'")
    assert done["num_deleted_rows"] == 1
    shop.add("people", '"customer": "c9", "city": "x1"')
    shop.has(counts, ("x0", 3), ("x1", 4))
    eventually("the row is there", lambda: len(shop.rows(rows)) == 7 == len(read_delta(target)), 90)
    for query in (rows, counts, sink):
        lab.waits(query)  # it is measured
        warning = lab.report(query).warning or ""
        assert warning.startswith("[MZ305] 1 row of source.people was deleted by another writer")
