-- unknown
-- only a condition on one side of the join needs other columns, and Spark may not store them
-- output: append

SELECT o.id, o.n AS v, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR WHERE o.n > 1 AND o.m > 1

-- becomes

SELECT o.id, o.m AS v, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR WHERE o.n > 1 AND o.m > 1
