-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n = 1 OR amount > 2 GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE amount > 2 OR n = 1 GROUP BY customer
