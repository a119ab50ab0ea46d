-- mixed
-- the groups are `window(ts, '5 minutes')`, `customer` instead of `window(ts, '10 minutes')`, `customer`, and the state has the former keys
-- output: append

SELECT window(ts, '10 minutes').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '10 minutes'), customer

-- becomes

SELECT window(ts, '5 minutes').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '5 minutes'), customer
