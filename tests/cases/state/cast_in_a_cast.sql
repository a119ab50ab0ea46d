-- unknown
-- mzplan can't compare the states: a cast stands in a cast

SELECT customer, sum(CAST(amount AS INT)) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(CAST(CAST(amount AS INT) AS INT)) AS total FROM orders GROUP BY customer
