-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n <> 1 GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE NOT n = 1 GROUP BY customer
