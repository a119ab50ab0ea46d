-- lost
-- `sum(n)` takes the place of `count(*)`, and Spark stores BIGINT instead of BIGINT NOT NULL

SELECT customer, count(*) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(n) AS x FROM orders GROUP BY customer
