"""Queries for views over `orders`, `payments` and `customers`, which reach out of their inputs, or try to.

$X is a file that a shell would make, $F one that somebody would like to read. None of them may run.
"""

from __future__ import annotations

from tests.hostile_expressions import HOSTILE_STATEMENTS

SCRIPT = "USING 'sh -c \"touch $X\"' AS (x STRING)"

HOSTILE_QUERIES = [
    *HOSTILE_STATEMENTS,
    # What is read is no input.
    "SELECT * FROM orders JOIN text.`$F` t ON t.value = orders.note",
    "SELECT id FROM orders UNION ALL SELECT value FROM text.`$F`",
    "SELECT o.id FROM orders o LEFT JOIN (SELECT * FROM parquet.`$F`) p ON true",
    "SELECT id FROM orders UNION ALL SELECT id FROM `text.$F`",
    "SELECT id FROM orders UNION ALL SELECT id FROM spark_catalog.default.orders",
    "SELECT id FROM orders UNION ALL SELECT id FROM global_temp.orders",
    "SELECT id FROM orders UNION ALL SELECT id FROM session.orders",
    "SELECT id FROM orders UNION ALL SELECT id FROM other",
    "SELECT id FROM orders UNION ALL SELECT id FROM `orders `",
    "SELECT id FROM orders UNION ALL SELECT id FROM `ORDERS\u212a`",
    "SELECT id FROM orders UNION ALL TABLE other",
    "SELECT id FROM orders SORT BY id",
    "SELECT id FROM orders VERSION AS OF 1 GROUP BY id",
    "SELECT id FROM orders@v1 GROUP BY id",
    "SELECT id FROM orders WITH (path = '$F') GROUP BY id",
    "SELECT id FROM STREAM orders GROUP BY id",
    "SELECT id FROM STREAM(orders) GROUP BY id",
    "SELECT id FROM orders UNION ALL SELECT id FROM IDENTIFIER('text.`$F`')",
    "SELECT id FROM orders UNION ALL SELECT * FROM read_files('$F')",
    "SELECT id FROM orders UNION ALL SELECT * FROM explode(array(1))",
    "SELECT id FROM orders UNION ALL VALUES (1)",
    "SELECT id FROM orders UNION ALL SELECT 1",
    "SELECT o.id FROM orders o JOIN (VALUES (1)) v(id) ON v.id = o.id",
    "SELECT id FROM orders, LATERAL explode(tags)",
    "SELECT id FROM orders TABLESAMPLE (1 ROWS) GROUP BY id",
    "SELECT id FROM orders TABLESAMPLE (10 PERCENT) GROUP BY id",
    # A CTE that hides something, or is not one where it is read.
    "WITH orders AS (SELECT value AS id FROM text.`$F`) SELECT * FROM orders",
    "WITH a AS (SELECT * FROM b), b AS (SELECT * FROM orders) SELECT * FROM a",
    "SELECT * FROM (WITH a AS (SELECT id FROM orders) SELECT * FROM a) UNION ALL SELECT id FROM a",
    "WITH a AS (WITH b AS (SELECT id FROM orders) SELECT id FROM b) SELECT id FROM b",
    "WITH a AS (SELECT id FROM a) SELECT id FROM a",
    "WITH RECURSIVE orders AS (SELECT id FROM payments UNION ALL SELECT * FROM orders) SELECT * FROM orders",
    "WITH a AS (INSERT INTO x SELECT * FROM orders) SELECT id FROM orders",
    # Scripts, commands, and more than one query.
    f"SELECT TRANSFORM (note) {SCRIPT} FROM orders",
    f"SELECT x FROM (SELECT TRANSFORM (note) {SCRIPT} FROM orders) GROUP BY x",
    f"WITH a AS (SELECT TRANSFORM (note) {SCRIPT} FROM orders) SELECT x FROM a",
    f"FROM orders MAP note {SCRIPT}",
    f"SELECT id FROM orders UNION ALL (REDUCE note {SCRIPT} FROM orders)",
    "SELECT id FROM orders GROUP BY id; DROP TABLE orders",
    "CREATE OR REPLACE TEMPORARY VIEW orders AS SELECT * FROM text.`$F`",
    "INSERT INTO orders SELECT * FROM payments",
    "MERGE INTO orders USING payments ON true WHEN MATCHED THEN DELETE",
    "DESCRIBE orders",
    "SHOW TABLES",
    "FROM orders |> UNION ALL TABLE payments",
    # Queries within expressions.
    "SELECT id, (SELECT first(value) FROM text.`$F`) AS n FROM orders GROUP BY id",
    "SELECT id, (SELECT max(id) FROM payments) AS n FROM orders GROUP BY id",
    "SELECT id FROM orders GROUP BY id HAVING count(*) > (SELECT count(*) FROM text.`$F`)",
    "SELECT id FROM orders WHERE id IN (SELECT id FROM payments) GROUP BY id",
    "SELECT id FROM orders WHERE NOT EXISTS (SELECT 1 FROM payments p WHERE p.id = orders.id)",
    "SELECT o.id FROM orders o JOIN payments p ON o.id = (SELECT max(value) FROM text.`$F`)",
    "SELECT array(SELECT value FROM text.`$F`) AS a FROM orders GROUP BY ALL",
    # Functions that are not Spark's own, or reach out of SQL.
    "SELECT reflect('java.lang.System', 'nanoTime') AS n, count(*) AS c FROM orders GROUP BY ALL",
    "SELECT max(java_method('java.lang.System', 'getenv', 'HOME')) AS n FROM orders",
    "SELECT o.id FROM orders o JOIN payments p ON o.id = `try_reflect`('java.lang.System', 'nanoTime')",
    "SELECT id FROM orders LATERAL VIEW reflect('java.lang.System', 'nanoTime') t AS x",
    "SELECT id FROM orders LATERAL VIEW upper(note) t AS x",
    "SELECT id FROM orders LATERAL VIEW evil(note) t AS x",
    "SELECT id FROM orders LATERAL VIEW default.explode(tags) t AS x",
    "SELECT id FROM orders LATERAL VIEW explode(array(xpath_string(note, 'a'))) t AS x",
    "SELECT evil(note) AS n, count(*) AS c FROM orders GROUP BY ALL",
    "SELECT default.evil(note) AS n, count(*) AS c FROM orders GROUP BY ALL",
    "SELECT max(xpath_string(note, 'a')) AS n FROM orders",
    "SELECT max(from_xml(note, 'a INT', map('rowValidationXSDPath', '$F')).a) AS n FROM orders",
    "SELECT max(from_protobuf(note, 'm', '$F')) AS n FROM orders",
    'SELECT max(from_json(note, \'{"type": "udt"}\')) AS n FROM orders',
    "SELECT identifier('reflect')('java.lang.System', 'nanoTime') AS n FROM orders GROUP BY ALL",
    # Order, and what a stream has not.
    "SELECT id, count(*) AS c FROM orders GROUP BY id ORDER BY c",
    "SELECT id, count(*) AS c FROM orders GROUP BY id LIMIT 1",
    "SELECT id, count(*) AS c FROM orders GROUP BY id OFFSET 1",
    "SELECT id FROM orders DISTRIBUTE BY id",
    "SELECT id FROM orders INTERSECT SELECT id FROM payments",
    "SELECT id FROM orders EXCEPT SELECT id FROM payments",
    "SELECT id, sum(id) OVER (ORDER BY id) AS s FROM orders",
    "SELECT id, row_number() OVER w AS n FROM orders WINDOW w AS (ORDER BY id)",
    "SELECT id, count(*) AS c FROM orders GROUP BY CUBE (id)",
    "SELECT id, count(*) AS c FROM orders GROUP BY id WITH ROLLUP",
    "SELECT id, count(*) AS c FROM orders GROUP BY GROUPING SETS ((id), ())",
    "SELECT /*+ BROADCAST(payments) */ o.id FROM orders o JOIN payments p ON o.id = p.id",
    # Two lexers, and variables.
]
