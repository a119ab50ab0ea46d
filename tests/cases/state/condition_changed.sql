-- mixed
-- `n >= 1` is a new condition below the state and `n > 1` is no longer a condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE n >= 1 GROUP BY customer
