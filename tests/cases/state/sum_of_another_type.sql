-- lost
-- `sum(CAST(n AS DOUBLE))` takes the place of `sum(n)`, and Spark stores DOUBLE instead of BIGINT

SELECT customer, sum(n) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(CAST(n AS DOUBLE)) AS x FROM orders GROUP BY customer
