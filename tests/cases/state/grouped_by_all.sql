-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY ALL
