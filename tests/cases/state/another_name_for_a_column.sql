-- kept
-- the change is above the state, and applies to rows written from now on

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS amount_total FROM orders GROUP BY customer
