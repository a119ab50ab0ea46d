-- mixed
-- the groups are `region` instead of `customer`, and the state has the former keys; `sum(tax)` takes the place of `sum(amount)`, and Spark stores aggregates by position; `n > 0` is a new condition below the state and `n > 1` is no longer a condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 GROUP BY customer

-- becomes

SELECT region AS customer, sum(tax) AS total FROM orders WHERE n > 0 GROUP BY region
