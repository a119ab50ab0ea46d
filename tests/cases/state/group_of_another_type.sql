-- lost
-- the groups are `id` instead of `customer`, and Spark stores BIGINT instead of STRING

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT id AS customer, sum(amount) AS total FROM orders GROUP BY id
