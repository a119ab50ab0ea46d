-- mixed
-- the aggregates are in another order, `sum(m)`, `sum(n)` instead of `sum(n)`, `sum(m)`, and Spark stores aggregates by position

SELECT customer, sum(n) - sum(m) AS d FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(m) - sum(n) AS d FROM orders GROUP BY customer
