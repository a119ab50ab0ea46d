-- lost
-- Spark numbers the operators that keep state: aggregation became join
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
