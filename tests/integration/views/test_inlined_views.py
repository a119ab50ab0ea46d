"""Views that are names for their SQL: Spark makes of what is put together what it makes of a query over a
query."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import functions as f

from mzplan.config import load_configuration
from mzplan.model.address import Address
from mzplan.schema.columns import parse_columns
from mzplan.schema.sql.expressions import parse_select
from tests.integration.spark_lab import Lab
from tests.unit.config_files import write

SCHEMA = (
    "id BIGINT, customer STRING, a INT, b INT, amount DECIMAL(10,2), day DATE, ts TIMESTAMP, "
    "tags ARRAY<STRING>, payload STRUCT<city: STRING, a: INT, deep: STRUCT<b: INT>>, `or` STRING, "
    "`left` INT, text STRING"
)
ROWS = """\
VALUES (1L, 'ann', 1, 10, 1.5, DATE '2026-01-31', TIMESTAMP '2026-01-31 10:00:00', array('x', 'ann'),
        named_struct('city', 'Bern', 'a', 7, 'deep', named_struct('b', 3)), 'o', 5, '{"a": 1}'),
       (2L, NULL, NULL, 20, 2.25, NULL, NULL, array(), NULL, NULL, NULL, 'x'),
       (-3L, 'bob', 0, 30, NULL, DATE '1970-01-01', TIMESTAMP '1970-01-01 00:00:00', NULL,
        named_struct('city', NULL, 'a', NULL, 'deep', NULL), 'p', -5, NULL)"""
# Its columns change their names and their places: what is not replaced, or twice, is another one.
BELOW = """\
id + 1 AS id
b AS a
a b
upper(customer) AS customer
CASE WHEN a > 0 THEN amount END AS amount
add_months(day, 1) AS day
ts + interval 1 hour AS ts
CAST(transform(tags, t -> t || customer) AS ARRAY<STRING>) AS tags
CAST(named_struct('city', customer, 'a', b, 'deep', payload.deep)
     AS STRUCT<city: STRING, a: INT, deep: STRUCT<b: INT>>) AS payload
CAST(`left` AS STRING) AS `or`
a + b AS `left`
text""".replace("\n ", " ").splitlines()
ABOVE = """\
a
A AS x
a*-b AS x
`a` AS `b`
`left` `case`
payload.city
payload.a AS a
payload.deep.b AS x
`payload`.`deep` AS x
CAST(a AS STRING) AS x
a::string AS x
try_cast(customer AS INT) AS x
coalesce(customer, 'none') x
`or` AS `or`
CASE a WHEN 20 THEN b ELSE a END AS x
a BETWEEN b AND 100 AS x
a IN (b, 20, 30) AS x
customer LIKE 'A%' AS x
NOT customer = 'ANN' AS x
customer IS NOT NULL AND a > 1 OR b > 1 AS x
tags[0] AS x
exists(tags, t -> t = customer) AS x
transform(tags, (t, i) -> concat(t, i, customer)) AS x
aggregate(tags, '', (acc, t) -> acc || t) AS x
date_trunc('hour', ts) AS x
ts - interval '1' day AS x
ts + interval '1-1' year to month AS x
extract(month FROM day) AS x
from_json(text, 'a INT').a AS x
named_struct('a', a, 'b', b) AS x
named_struct('a', a).a AS x
trim(BOTH 'A' FROM customer) AS x
substring(customer FROM 2 FOR 1) AS x
a | b ^ 3 AS x
position('N' IN customer) AS x
concat_ws('-', customer, a) /* a, b */ AS x -- a
_position AS p
* EXCEPT (a, `or`)
*""".splitlines()
CONDITIONS = [
    "a > 10",
    "a > 10 OR b IS NULL",
    "NOT customer = 'ANN'",
    "`left` > 5",
    "payload.city IS NOT NULL",
]


def _project() -> str:
    queries = {"below": f"SELECT {', '.join(BELOW)} FROM rows WHERE id <> 2"}
    queries |= {f"v{n}": f"SELECT * FROM below WHERE {condition}" for n, condition in enumerate(CONDITIONS)}
    sinks = {
        f"s{n}": {"type": "console", "from": f"v{n % len(CONDITIONS)}", "select": [item], "where": "id > -5"}
        for n, item in enumerate(ABOVE)
    }
    return json.dumps(
        {
            "sources": {"rows": {"type": "local", "schema": SCHEMA}},
            "views": {name: {"materialize": False, "query": query} for name, query in queries.items()},
            "sinks": sinks,
        }
    )


def test_an_inlined_view_is_what_spark_makes_of_nested_queries(lab: Lab, tmp_path: Path) -> None:
    resources = load_configuration(write(tmp_path, {"a.yaml": _project()})).resources
    assert {address.kind for address in resources} == {"source", "sink"}
    names = [column.name for column in parse_columns(SCHEMA)]
    base = lab.spark.sql(ROWS).toDF(*names).withColumn("_position", f.col("id")).cache()
    below = base.where("id <> 2").selectExpr(*BELOW, "_position")
    differing = []
    for number, item in enumerate(ABOVE):
        body = resources[Address("sink", f"s{number}")].body
        composed = base.where(body["where"]).selectExpr(*body["select"])
        rows = below.where(CONDITIONS[number % len(CONDITIONS)]).where("id > -5")
        nested = rows.selectExpr(item if item.startswith("*") else parse_select(item).sql)
        nested = nested.drop("_position") if item.startswith("*") else nested
        made, wanted = ((frame.schema.simpleString(), frame.collect()) for frame in (composed, nested))
        if made != wanted:
            differing.append((item, body["select"], made, wanted))
    assert not differing
