-- mixed
-- the semi join became a join, and the state has the rows that the former keeps
-- output: append

SELECT o.id, o.amount FROM orders o LEFT SEMI JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.amount FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
