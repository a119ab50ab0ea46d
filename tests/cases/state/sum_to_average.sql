-- lost
-- `avg(n)` takes the place of `sum(n)`, and Spark stores DOUBLE, BIGINT instead of BIGINT

SELECT customer, sum(n) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, avg(n) AS x FROM orders GROUP BY customer
