-- kept
-- the change is above the state, and applies to rows written from now on

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, total, total > 5 AS is_large FROM (SELECT customer, sum(amount) AS total FROM orders GROUP BY customer) x
