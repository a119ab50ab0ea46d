-- mixed
-- the groups are `region` instead of `customer`, and the state has the former keys

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT region, sum(amount) AS total FROM orders GROUP BY region
