-- kept
-- both queries compute the same state
-- output: append

SELECT DISTINCT customer, ts FROM orders

-- becomes

SELECT customer, ts FROM orders GROUP BY customer, ts
