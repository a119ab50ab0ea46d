-- kept
-- both queries compute the same state

SELECT id, count(*) AS c FROM (SELECT id FROM orders UNION ALL SELECT order_id FROM payments) u GROUP BY id

-- becomes

WITH u AS (SELECT id AS k FROM orders UNION ALL SELECT order_id FROM payments) SELECT k AS id, count(*) AS c FROM u GROUP BY k
