-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

WITH a AS (SELECT customer, amount FROM orders), b AS (SELECT * FROM a) SELECT customer, sum(amount) AS total FROM b GROUP BY customer
