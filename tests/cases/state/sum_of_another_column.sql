-- mixed
-- `sum(tax)` takes the place of `sum(amount)`, and Spark stores aggregates by position

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(tax) AS total FROM orders GROUP BY customer
