-- lost
-- Spark numbers the operators that keep state: aggregation became aggregation, aggregation
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT minute, max(total) AS total FROM (SELECT window(ts, '1 minute') AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer) x GROUP BY minute
