-- kept
-- both queries compute the same state

SELECT customer, avg(amount) AS mean FROM orders GROUP BY customer

-- becomes

SELECT customer, mean(amount) AS mean FROM orders GROUP BY customer
