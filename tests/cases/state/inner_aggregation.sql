-- mixed
-- `sum(tax)` takes the place of `sum(amount)`, and Spark stores aggregates by position; `max((sum(tax)))` takes the place of `max((sum(amount)))`, and Spark stores aggregates by position
-- output: append

SELECT minute, max(total) AS top FROM (SELECT window(ts, '1 minute') AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer) x GROUP BY minute

-- becomes

SELECT minute, max(total) AS top FROM (SELECT window(ts, '1 minute') AS minute, customer, sum(tax) AS total FROM orders GROUP BY window(ts, '1 minute'), customer) x GROUP BY minute
