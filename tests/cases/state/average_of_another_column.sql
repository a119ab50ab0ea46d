-- mixed
-- `avg(tax)` takes the place of `avg(amount)`, and Spark stores aggregates by position

SELECT customer, avg(amount) AS a FROM orders GROUP BY customer

-- becomes

SELECT customer, avg(tax) AS a FROM orders GROUP BY customer
