-- lost
-- the new query keeps no state
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT ts AS minute, customer, amount AS total FROM orders UNION ALL SELECT ts, customer, paid FROM payments
