-- lost
-- `sum(tax)` is removed, and Spark stores DECIMAL(20,2), BOOLEAN instead of DECIMAL(20,2), BOOLEAN, DECIMAL(20,2), BOOLEAN

SELECT customer, sum(amount) AS a, sum(tax) AS t FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
