-- mixed
-- `sum(amount) FILTER(WHERE n > 0)` takes the place of `sum(amount) FILTER(WHERE n > 1)`, and Spark stores aggregates by position

SELECT customer, sum(amount) FILTER (WHERE n > 1) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) FILTER (WHERE n > 0) AS s FROM orders GROUP BY customer
