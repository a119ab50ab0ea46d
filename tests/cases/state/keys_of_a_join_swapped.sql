-- mixed
-- the join keys are `upper(customer) = upper(customer)`, `customer = customer` instead of `customer = customer`, `upper(customer) = upper(customer)`, and the state has the former keys
-- output: append

SELECT o.id, p.paid FROM orders o JOIN payments p ON o.customer = p.customer AND upper(o.customer) = upper(p.customer) AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, p.paid FROM orders o JOIN payments p ON upper(o.customer) = upper(p.customer) AND o.customer = p.customer AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
