-- mixed
-- `max(id)` takes the place of `sum(id)`, and Spark stores aggregates by position

SELECT customer, sum(id) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, max(id) AS x FROM orders GROUP BY customer
