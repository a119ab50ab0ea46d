-- lost
-- the groups are `customer`, `region`, `ts` instead of `customer`, `ts`, and Spark stores STRING, STRING, TIMESTAMP instead of STRING, TIMESTAMP
-- output: append

SELECT DISTINCT customer, ts FROM orders

-- becomes

SELECT DISTINCT customer, region, ts FROM orders
