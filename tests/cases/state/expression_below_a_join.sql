-- mixed
-- one side of the join keeps `id`, `amount - tax`, `ts` instead of `id`, `amount + tax`, `ts`, and the state has the former columns
-- output: append

SELECT o.id, o.amount, p.paid FROM (SELECT id, amount + tax AS amount, ts FROM orders) o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.amount, p.paid FROM (SELECT id, amount - tax AS amount, ts FROM orders) o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
