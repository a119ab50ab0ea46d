-- kept
-- both queries compute the same state
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT w.start AS minute, customer, sum(amount) AS total FROM (SELECT window(ts, '1 minute') AS w, customer, amount FROM orders) x GROUP BY w, customer
