-- mixed
-- `sum(CASE WHEN n > 1 THEN 0 ELSE 1 END)` takes the place of `sum(CASE WHEN n > 1 THEN 1 ELSE 0 END)`, and Spark stores aggregates by position

SELECT customer, sum(CASE WHEN n > 1 THEN 1 ELSE 0 END) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(CASE WHEN n > 1 THEN 0 ELSE 1 END) AS s FROM orders GROUP BY customer
