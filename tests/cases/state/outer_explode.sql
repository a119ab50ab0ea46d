-- mixed
-- the collections, UNIONs or generators below the state are others

SELECT customer, count(*) AS c FROM orders LATERAL VIEW explode(tags) t AS tag GROUP BY customer

-- becomes

SELECT customer, count(*) AS c FROM orders LATERAL VIEW OUTER explode(tags) t AS tag GROUP BY customer
