-- mixed
-- `max_by(region, m)` takes the place of `max_by(region, n)`, and Spark stores aggregates by position

SELECT customer, max_by(region, n) AS r FROM orders GROUP BY customer

-- becomes

SELECT customer, max_by(region, m) AS r FROM orders GROUP BY customer
