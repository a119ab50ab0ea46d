-- kept
-- both queries compute the same state

SELECT customer, sum(a) AS total FROM (SELECT customer, amount AS a FROM orders WHERE n > 1) x GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 GROUP BY customer
