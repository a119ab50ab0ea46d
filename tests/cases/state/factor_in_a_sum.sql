-- mixed
-- `sum(n * 2)` takes the place of `sum(n)`, and Spark stores aggregates by position

SELECT customer, sum(n) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(n * 2) AS s FROM orders GROUP BY customer
