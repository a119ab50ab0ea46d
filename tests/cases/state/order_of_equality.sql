-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n = m GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE m = n GROUP BY customer
