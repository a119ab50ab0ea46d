-- unknown
-- the query reads other fields of a column, and a join may store only those it reads
-- output: append

SELECT o.id, o.st.a AS v, p.paid FROM (SELECT id, named_struct('a', n, 'b', m) AS st, ts FROM orders) o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR

-- becomes

SELECT o.id, o.st.b AS v, p.paid FROM (SELECT id, named_struct('a', n, 'b', m) AS st, ts FROM orders) o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR
