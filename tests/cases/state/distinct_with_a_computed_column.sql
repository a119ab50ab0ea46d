-- kept
-- the change is above the state, and applies to rows written from now on
-- output: append

SELECT DISTINCT customer, ts FROM orders

-- becomes

SELECT upper(customer) AS customer, ts FROM (SELECT DISTINCT customer, ts FROM orders) x
