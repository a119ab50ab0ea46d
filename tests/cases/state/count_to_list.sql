-- lost
-- `collect_list(n)` takes the place of `count(*)`, and Spark stores BINARY instead of BIGINT NOT NULL

SELECT customer, count(*) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, collect_list(n) AS x FROM orders GROUP BY customer
