-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT o.customer, sum(o.amount) AS total FROM orders AS o GROUP BY o.customer
