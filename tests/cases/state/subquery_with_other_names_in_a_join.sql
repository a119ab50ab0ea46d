-- unknown
-- a subquery renames or computes columns, and Spark may store them as nullable
-- output: append

SELECT o.id, p.paid FROM orders o JOIN payments p ON o.customer = p.customer AND o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, p.paid FROM orders o JOIN (SELECT order_id AS i, customer AS c, paid, ts FROM payments) p ON o.customer = p.c AND o.id = p.i AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
