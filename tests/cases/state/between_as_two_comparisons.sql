-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n BETWEEN 1 AND 2 GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE n <= 2 AND n >= 1 GROUP BY customer
