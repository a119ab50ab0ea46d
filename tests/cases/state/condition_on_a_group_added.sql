-- mixed
-- `customer <> 'ada'` is a new condition above the state: Spark evaluates it before the state, which has rows that the former query chose
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer HAVING customer <> 'ada'
