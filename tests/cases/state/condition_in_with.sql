-- mixed
-- `n > 1` is a new condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

WITH o AS (SELECT * FROM orders WHERE n > 1) SELECT customer, sum(amount) AS total FROM o GROUP BY customer
