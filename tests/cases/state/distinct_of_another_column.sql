-- mixed
-- the groups are `region`, `ts` instead of `customer`, `ts`, and the state has the former keys
-- output: append

SELECT DISTINCT customer, ts FROM orders

-- becomes

SELECT DISTINCT region AS customer, ts FROM orders
