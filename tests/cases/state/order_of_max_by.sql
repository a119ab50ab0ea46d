-- mixed
-- `max_by(id, -m)` takes the place of `max_by(id, n)`, and Spark stores aggregates by position

SELECT customer, max_by(id, n) AS r FROM orders GROUP BY customer

-- becomes

SELECT customer, max_by(id, -m) AS r FROM orders GROUP BY customer
