"""Connections of type spark: secrets only as references, and what a plan says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, brief, errors, write

PROJECT = """\
connections:
  warehouse:
    type: spark
    format: jdbc
    options: {url: "jdbc:postgresql://db/shop", user: app, fetchsize: 100%s}
    secrets: {password: "${env:DB_PASSWORD}"}
  ticks: {type: spark, format: rate, options: {rowsPerSecond: 1}}
sources:
  tick: {connection: ticks, schema: "timestamp TIMESTAMP, value BIGINT"}
sinks:
  copy: {from: tick, connection: warehouse, options: {dbtable: ticks}, batch: true}
"""


def test_a_plan_says_what_is_unchecked_and_shows_no_secret(tmp_path: Path) -> None:
    write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": PROJECT % ""})
    plan = mzplan(tmp_path, "plan").out
    assert "source.tick: mzplan knows nothing of this data source" in plan
    assert "sink.copy: it writes each row at least once" in plan and "DB_PASSWORD" not in plan
    apply(tmp_path)
    assert planned_effects(tmp_path) == {}
    write(tmp_path, {"a.yaml": (PROJECT % ", queryTimeout: 5")})
    assert planned_effects(tmp_path) == {"connection.warehouse": "restart", "sink.copy": "restart"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("user: app", "user: app, password: hunter22", "MZ016"),
        ("user: app", "user: app, fs.s3a.access.key: AKIA22", "MZ016"),
        ("user: app", "user: app, sasToken: hunter22", "MZ016"),
        ('password: "${env:DB_PASSWORD}"', "password: hunter22", "MZ016"),
        ("postgresql://db", "postgresql://app:hunter22@db", "MZ016"),
        ("db/shop", "db/shop?user=app&password=hunter22", "MZ016"),
        ("{dbtable: ticks}", "{dbtable: ticks, password: hunter22}", "MZ016"),
        ("user: app", 'user: "${env:DB_USER}"', "MZ102"),
        ("format: jdbc", 'format: "a b"', "MZ005"),
        ("batch: true", "mode: upsert", "MZ004"),
    ],
)
def test_a_secret_in_clear_is_refused_and_not_shown(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = PROJECT % ""
    assert old in text
    found = errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": text.replace(old, new)})
    assert len(found) == 1 and expected in brief(found)[0], brief(found)
    assert "hunter22" not in str(found) and "AKIA22" not in str(found)


TABLE = """\
connections:
  shop_db: {type: spark, format: jdbc, options: {url: "jdbc:postgresql://db/shop"}}
sources:
  customers:
    {connection: shop_db, options: {dbtable: c}, schema: "id INT, city STRING"%s}
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (", batch: true, key: [id], trigger: {interval: 10m}", ""),
        (", batch: true, key: [id], trigger: available-now", ""),
        (", batch: true, key: [id]", ""),
        (", batch: true, trigger: {interval: 10m}", "MZ006"),
        (", key: [id]", "MZ020"),
        (", batch: true, key: [name], trigger: {interval: 10m}", "name"),
    ],
)
def test_a_table_has_a_key(tmp_path: Path, more: str, expected: str) -> None:
    found = brief(errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": TABLE % more}))
    assert expected in " ".join(found) and bool(found) == bool(expected), found
