-- lost
-- the groups are `ts`, `customer`, `amount` instead of `window(ts, '1 minute')`, `customer`, and Spark stores TIMESTAMP, STRING, DECIMAL(10,2) instead of STRUCT<start: TIMESTAMP,end: TIMESTAMP>, STRING; `sum(amount)` is removed, and Spark stores nothing instead of DECIMAL(20,2), BOOLEAN
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT DISTINCT ts AS minute, customer, amount AS total FROM orders
