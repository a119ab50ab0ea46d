-- kept
-- both queries compute the same state

SELECT customer, sum(a) AS total FROM (SELECT customer, amount AS a FROM orders) x GROUP BY customer

-- becomes

WITH x AS (SELECT customer, amount AS a FROM orders) SELECT customer, sum(a) AS total FROM x GROUP BY customer
