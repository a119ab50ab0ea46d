-- unknown
-- mzplan can't compare the states: Spark may keep two aggregates as one

SELECT customer, sum(n + m) AS a FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(n + m) AS a, sum(m + n) AS b FROM orders GROUP BY customer
