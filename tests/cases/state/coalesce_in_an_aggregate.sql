-- mixed
-- `max(coalesce(m, 99))` takes the place of `max(m)`, and Spark stores aggregates by position

SELECT customer, max(m) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, max(coalesce(m, 99)) AS s FROM orders GROUP BY customer
