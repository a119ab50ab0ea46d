-- mixed
-- `first(m) IGNORE NULLS` takes the place of `first(m)`, and Spark stores aggregates by position

SELECT customer, first(m) AS v FROM orders GROUP BY customer

-- becomes

SELECT customer, first(m) IGNORE NULLS AS v FROM orders GROUP BY customer
