-- mixed
-- the groups are `window(ts, '2 minutes')`, `customer` instead of `window(ts, '1 minute')`, `customer`, and the state has the former keys
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT window(ts, '2 minutes').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '2 minutes'), customer
