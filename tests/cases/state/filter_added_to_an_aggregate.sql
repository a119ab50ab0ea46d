-- mixed
-- `sum(amount) FILTER(WHERE n > 1)` takes the place of `sum(amount)`, and Spark stores aggregates by position

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) FILTER (WHERE n > 1) AS total FROM orders GROUP BY customer
