-- kept
-- the change is above the state, and applies to rows written from now on
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT window(ts, '1 minute').end AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer
