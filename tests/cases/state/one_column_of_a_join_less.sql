-- lost
-- one side of the join keeps `id`, `ts` instead of `id`, `amount`, `ts`, and Spark stores BIGINT, TIMESTAMP instead of BIGINT, DECIMAL(10,2), TIMESTAMP
-- output: append

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
