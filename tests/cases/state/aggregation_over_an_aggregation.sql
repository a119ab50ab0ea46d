-- kept
-- both queries compute the same state
-- output: append

SELECT minute, max(total) AS top FROM (SELECT window(ts, '1 minute') AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer) x GROUP BY minute

-- becomes

WITH x AS (SELECT window(ts, '1 minute') AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer) SELECT minute, max(x.total) AS top FROM x GROUP BY x.minute
