-- mixed
-- `min(n)` takes the place of `max(n)`, and Spark stores aggregates by position

SELECT customer, max(n) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, min(n) AS x FROM orders GROUP BY customer
