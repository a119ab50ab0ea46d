-- lost
-- one side of the join keeps `id`, `region`, `amount` and 1 more instead of `id`, `amount`, `ts`, and Spark stores BIGINT, STRING, DECIMAL(10,2), TIMESTAMP instead of BIGINT, DECIMAL(10,2), TIMESTAMP
-- output: append

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.amount, o.region, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
