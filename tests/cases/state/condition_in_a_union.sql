-- mixed
-- the collections, UNIONs or generators below the state are others

SELECT id, count(*) AS c FROM (SELECT id FROM orders UNION ALL SELECT order_id FROM payments) u GROUP BY id

-- becomes

SELECT id, count(*) AS c FROM (SELECT id FROM orders UNION ALL SELECT order_id FROM payments WHERE paid > 2) u GROUP BY id
