-- mixed
-- `n > 1` is a new condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM (SELECT * FROM orders WHERE n > 1) x GROUP BY customer
