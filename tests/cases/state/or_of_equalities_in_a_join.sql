-- unknown
-- mzplan can't compare the states: a condition of a join is an OR of equalities
-- output: append

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON ((o.id = p.order_id AND o.n > 1) OR (o.id = p.order_id AND o.n < 1)) AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
