-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 AND amount > 0 GROUP BY customer

-- becomes

SELECT c AS customer, sum(b) AS total FROM (SELECT c, a AS b FROM (SELECT customer AS c, amount AS a, n FROM orders WHERE amount > 0) x WHERE n > 1) y GROUP BY c
