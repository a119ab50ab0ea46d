-- mixed
-- the groups are `region`, `customer`, `ts` instead of `customer`, `region`, `ts`, and the state has the former keys
-- output: append

SELECT DISTINCT customer, region, ts FROM orders

-- becomes

SELECT DISTINCT region, customer, ts FROM orders
