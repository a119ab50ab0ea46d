"""A delta sink's table of a catalog, as far as its place is known without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mzplan.connectors.api.lineage_names import LineageName
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.delta.catalog_table import take_table
from mzplan.connectors.delta.sink import DeltaSink
from mzplan.connectors.unresolved import lineage_of
from mzplan.model.address import Address
from mzplan.schema.columns import parse_columns
from mzplan.schema.description import CollectionRead
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.paths import local_path
from tests.support import refusal
from tests.unit.connectors.queries import described

OUTPUTS = (Output(name="id", type="BIGINT"),)
HIVE = {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": "file:/srv/tables"}


def sink(folder: Path, **body: Any) -> ResolvedQuery:
    """Return a sink into sales.orders, with a checkpoint."""
    body = {"from": "orders", "table": "sales.orders", "create": False, **body}
    read = CollectionRead(
        address=Address("source", "orders"), id="o", generation=1, type="local", body={"schema": "id BIGINT"}
    )
    return ResolvedQuery(
        description=described("sink.copy", "delta", body, reads={"orders": read}),
        body=body,
        connection=None,
        columns=parse_columns("id BIGINT"),
        directory=str(folder),
        checkpoint=Checkpoint.of(str(folder / "warehouse"), "copy", 1),
    )


def table(folder: Path, type_: pa.DataType | None = None) -> DeltaTable:
    write_deltalake(str(folder), pa.table({"id": pa.array([1], type_ or pa.int64())}))
    return DeltaTable(str(folder))


def ran(query: ResolvedQuery) -> Checkpoint:
    """Return the sink's checkpoint, after its first step."""
    assert query.checkpoint is not None
    spark = Path(query.checkpoint.spark)
    for name in ("commits", "offsets"):
        (spark / name).mkdir(parents=True, exist_ok=True)
        (spark / name / "0").write_text("v1\n{}\n")
    (spark / "metadata").write_text(json.dumps({"id": "q"}))
    return query.checkpoint


class Catalog:
    """A stand-in for a session: one schema, and perhaps the table."""

    def __init__(self, place: DeltaTable | None, settings: dict[str, str]):
        self.place, self.made, self.settings = place, "", settings
        self.catalog, self.conf = self, SimpleNamespace(get=lambda name, default=None: settings.get(name))

    def tableExists(self, name: str) -> bool:  # noqa: N802
        assert name == "`sales`.`orders`"
        return self.place is not None

    def databaseExists(self, _: str) -> bool:  # noqa: N802
        return False

    def currentCatalog(self) -> str:  # noqa: N802
        return "spark_catalog"

    def sql(self, statement: str) -> Any:
        if statement.startswith("CREATE TABLE IF NOT EXISTS `sales`.`orders` "):
            self.made, self.place = statement, table(Path(self.settings["folder"]))
        if not statement.startswith("DESCRIBE") or self.place is None:
            return None
        folder, id_ = local_path(self.place.table_uri), self.place.metadata().id
        return SimpleNamespace(first=lambda: {"format": "delta", "location": f"file:{folder}", "id": id_})


def taken(query: ResolvedQuery, place: DeltaTable | None = None, **settings: str) -> tuple[str, str]:
    """Return the sink's folder, and the statement that created its table."""
    catalog = Catalog(
        place,
        settings | {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
    )
    assert query.checkpoint is not None
    session: Any = catalog
    return take_table(session, query, query.checkpoint, "(id BIGINT) USING DELTA"), catalog.made


def found(query: ResolvedQuery) -> Iterator[tuple[str, str]]:
    return ((d.severity, d.code) for d in DeltaSink().probe(query, OUTPUTS).diagnostics)


def test_a_table_is_unknown_until_a_runner_finds_it(tmp_path: Path) -> None:
    query, connector = sink(tmp_path), DeltaSink()
    assert not list(found(query))
    assert connector.target_table(query) is None
    assert refusal(lambda: connector.recorded(query, OUTPUTS)).code == "MZ177"
    lineage = lineage_of(query.description, str(tmp_path), str(tmp_path / "warehouse"))
    assert lineage.outputs == ()
    folder, made = taken(query, table(tmp_path / "with space"))
    assert (folder, made) == (str(tmp_path / "with space"), "")
    assert connector.target_table(query) == folder
    assert connector.route(query) == "table sales.orders"
    connector.recorded(query, OUTPUTS)
    (end,) = lineage_of(query.description, str(tmp_path), str(tmp_path / "warehouse")).outputs
    assert end.name == LineageName("file", folder)


def test_a_missing_table_is_created_only_if_the_sink_asks_for_it(tmp_path: Path) -> None:
    assert "no table sales.orders" in refusal(lambda: taken(sink(tmp_path))).summary
    query, folder = sink(tmp_path, create=True), str(tmp_path / "t")
    assert taken(query, folder=folder, **HIVE) == (
        folder,
        "CREATE TABLE IF NOT EXISTS `sales`.`orders` (id BIGINT) USING DELTA",
    )
    assert taken(query, DeltaTable(folder), **HIVE) == (folder, "")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"spark.sql.catalogImplementation": "in-memory"}, "in memory"),
        ({**HIVE, "spark.sql.warehouse.dir": "file:/tmp/mzplan-spark-x1/tables"}, "temporary folder"),
    ],
)
def test_a_catalog_that_forgets_its_tables_gets_none(
    tmp_path: Path, settings: dict[str, str], why: str
) -> None:
    refused = refusal(lambda: taken(sink(tmp_path, create=True), **settings))
    assert (refused.code, why in refused.detail) == ("MZ407", True), refused


def test_another_table_under_the_name_is_refused_once_a_step_is_written(tmp_path: Path) -> None:
    query, first, second = sink(tmp_path, create=True), table(tmp_path / "a"), table(tmp_path / "b")
    assert taken(query, first)[0] == str(tmp_path / "a")
    assert taken(query, second)[0] == str(tmp_path / "b")  # nothing is written yet
    ran(query)
    refused = refusal(lambda: taken(query, first))
    assert (refused.code, refused.kind, refused.exit_code) == ("MZ407", "another-upstream", 7)
    assert first.metadata().id in refused.detail and str(tmp_path / "b") in refused.detail
    assert "No table has the name" in refusal(lambda: taken(query, **HIVE)).detail
    accepting = sink(tmp_path, on_target_change="accept")
    assert taken(accepting, first)[0] == str(tmp_path / "a")


def test_another_table_in_the_folder_is_found_without_spark(tmp_path: Path) -> None:
    query = sink(tmp_path)
    taken(query, table(tmp_path / "t"))
    ran(query)
    assert not list(found(query))
    (tmp_path / "t").rename(tmp_path / "former")
    assert not list(found(query))  # only the catalog knows whether it was moved
    table(tmp_path / "t")
    assert list(found(query)) == [("error", "MZ407")]
    assert list(found(sink(tmp_path, on_target_change="accept"))) == [("notice", "MZ407")]


def test_an_existing_table_must_fit_the_sink(tmp_path: Path) -> None:
    query = sink(tmp_path)
    taken(query, table(tmp_path / "t", pa.int32()))
    assert list(found(query)) == [("error", "MZ053")]
