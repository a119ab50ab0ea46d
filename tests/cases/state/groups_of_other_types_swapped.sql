-- lost
-- the groups are `id`, `customer` instead of `customer`, `id`, and Spark stores BIGINT, STRING instead of STRING, BIGINT

SELECT customer, id, sum(n) AS s FROM orders GROUP BY customer, id

-- becomes

SELECT customer, id, sum(n) AS s FROM orders GROUP BY id, customer
