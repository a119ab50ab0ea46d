-- lost
-- `max(id)` takes the place of `max(n)`, and Spark stores BIGINT instead of INT

SELECT customer, max(n) AS x FROM orders GROUP BY customer

-- becomes

SELECT customer, max(id) AS x FROM orders GROUP BY customer
