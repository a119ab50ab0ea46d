-- unknown
-- `approx_count_distinct(m)` takes the place of `approx_count_distinct(n)`, and only Spark knows whether it stores the same types

SELECT customer, approx_count_distinct(n) AS a FROM orders GROUP BY customer

-- becomes

SELECT customer, approx_count_distinct(m) AS a FROM orders GROUP BY customer
