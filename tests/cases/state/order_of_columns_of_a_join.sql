-- kept
-- the change is above the state, and applies to rows written from now on
-- output: append

SELECT o.id, o.amount, p.paid FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT p.paid, o.id, o.amount FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
