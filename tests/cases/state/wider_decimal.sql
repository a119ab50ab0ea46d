-- lost
-- `sum(amount * tax)` takes the place of `sum(amount)`, and Spark stores DECIMAL(31,4), BOOLEAN instead of DECIMAL(20,2), BOOLEAN

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount * tax) AS total FROM orders GROUP BY customer
