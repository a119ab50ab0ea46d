-- mixed
-- `amount > 2` is no longer a condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders WHERE amount > 2 GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
