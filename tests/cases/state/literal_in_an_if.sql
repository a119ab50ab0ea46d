-- mixed
-- `sum(if(n > 0, 1, 0))` takes the place of `sum(if(n > 1, 1, 0))`, and Spark stores aggregates by position

SELECT customer, sum(if(n > 1, 1, 0)) AS s FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(if(n > 0, 1, 0)) AS s FROM orders GROUP BY customer
