-- mixed
-- `customer <> 'ada'` is no longer a condition above the state: Spark evaluates it before the state, which has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer HAVING customer <> 'ada'

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
