-- mixed
-- `sum(m - n)` takes the place of `sum(n - m)`, and Spark stores aggregates by position

SELECT customer, sum(n - m) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(m - n) AS s FROM orders GROUP BY customer
