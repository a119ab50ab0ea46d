-- lost
-- `count(*)` is new, and Spark stores DECIMAL(20,2), BOOLEAN, BIGINT NOT NULL instead of DECIMAL(20,2), BOOLEAN

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer HAVING count(*) > 1
