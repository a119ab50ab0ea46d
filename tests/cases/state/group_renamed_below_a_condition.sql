-- unknown
-- a subquery renames or computes columns, and Spark may store them as nullable

SELECT customer, sum(amount) AS total FROM orders WHERE customer <> 'x' GROUP BY customer

-- becomes

SELECT c AS customer, sum(a) AS total FROM (SELECT customer AS c, amount AS a FROM orders WHERE customer <> 'x') x GROUP BY c
