-- kept
-- both queries compute the same state

SELECT tag, count(*) AS c FROM orders LATERAL VIEW explode(tags) t AS tag GROUP BY tag

-- becomes

SELECT x AS tag, count(*) AS c FROM orders o LATERAL VIEW explode(o.tags) v AS x GROUP BY x
