-- kept
-- both queries compute the same state
-- output: append

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT a.id, a.amount, b.paid FROM orders a JOIN payments b ON a.id = b.order_id AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 HOUR
