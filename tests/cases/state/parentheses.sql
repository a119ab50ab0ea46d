-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 AND amount > 0 GROUP BY customer

-- becomes

SELECT customer, (sum((amount))) AS total FROM orders WHERE ((n > (1)) AND (amount > 0)) GROUP BY customer
