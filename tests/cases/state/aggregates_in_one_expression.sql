-- kept
-- the change is above the state, and applies to rows written from now on

SELECT customer, sum(n) AS s, count(*) AS c FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(n) / count(*) AS s FROM orders GROUP BY customer
