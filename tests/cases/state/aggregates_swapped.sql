-- mixed
-- the aggregates are in another order, `sum(tax)`, `sum(amount)` instead of `sum(amount)`, `sum(tax)`, and Spark stores aggregates by position

SELECT customer, sum(amount) AS a, sum(tax) AS t FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(tax) AS t, sum(amount) AS a FROM orders GROUP BY customer
