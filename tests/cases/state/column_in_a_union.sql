-- mixed
-- the groups are `region` instead of `customer`, and the state has the former keys

SELECT k, count(*) AS c FROM (SELECT customer AS k FROM orders UNION ALL SELECT customer FROM payments) u GROUP BY k

-- becomes

SELECT k, count(*) AS c FROM (SELECT region AS k FROM orders UNION ALL SELECT customer FROM payments) u GROUP BY k
