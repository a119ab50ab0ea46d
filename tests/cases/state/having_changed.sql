-- kept
-- the change is above the state, and applies to rows written from now on

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer HAVING sum(amount) > 4

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer HAVING sum(amount) > 6
