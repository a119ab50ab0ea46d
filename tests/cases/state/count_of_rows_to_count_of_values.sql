-- mixed
-- `count(region)` takes the place of `count(*)`, and Spark stores aggregates by position

SELECT customer, count(*) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, count(region) AS x FROM orders GROUP BY customer
