-- mixed
-- the join keys are `region = customer` instead of `customer = customer`, and the state has the former keys
-- output: append

SELECT o.id, o.customer, o.region, p.paid FROM orders o JOIN payments p ON o.customer = p.customer AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.customer, o.region, p.paid FROM orders o JOIN payments p ON o.region = p.customer AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
