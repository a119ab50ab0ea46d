-- mixed
-- `sum(tax)` takes the place of `sum(amount)`, and Spark stores aggregates by position

SELECT customer, sum(a) AS s FROM (SELECT customer, amount AS a FROM orders) x GROUP BY customer

-- becomes

SELECT customer, sum(a) AS s FROM (SELECT customer, tax AS a FROM orders) x GROUP BY customer
