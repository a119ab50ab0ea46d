-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n IN (1, 2) GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE n IN (2, 1) GROUP BY customer
