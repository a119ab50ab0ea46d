-- mixed
-- `n > 1` is no longer a condition below the state: the state has rows that the former query chose
-- output: append

SELECT DISTINCT customer, ts FROM orders WHERE n > 1

-- becomes

SELECT DISTINCT customer, ts FROM orders
