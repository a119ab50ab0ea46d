-- unknown
-- the join keys are `upper(customer) = upper(customer)`, `customer IS NOT DISTINCT FROM customer` instead of `customer IS NOT DISTINCT FROM customer`, `upper(customer) = upper(customer)`, and only Spark knows whether it stores the same types
-- output: append

SELECT o.id, p.paid FROM orders o JOIN payments p ON o.customer <=> p.customer AND upper(o.customer) = upper(p.customer) AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, p.paid FROM orders o JOIN payments p ON upper(o.customer) = upper(p.customer) AND o.customer <=> p.customer AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
