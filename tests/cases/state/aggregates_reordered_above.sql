-- unknown
-- mzplan can't compare the states: a query above an aggregation puts its aggregates in another order

SELECT customer, sum(amount) AS a, sum(tax) AS t FROM orders GROUP BY customer

-- becomes

SELECT customer, t, a FROM (SELECT customer, sum(amount) AS a, sum(tax) AS t FROM orders GROUP BY customer) x
