-- mixed
-- the groups are `region`, `customer` instead of `customer`, `region`, and the state has the former keys

SELECT customer, region, sum(n) AS s FROM orders GROUP BY customer, region

-- becomes

SELECT customer, region, sum(n) AS s FROM orders GROUP BY region, customer
