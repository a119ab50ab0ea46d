-- lost
-- the groups are `region` instead of `customer`, and the state has the former keys; `max(tax)` takes the place of `sum(amount)`, and Spark stores DECIMAL(10,2) instead of DECIMAL(20,2), BOOLEAN; `n > 1` is a new condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT region AS customer, max(tax) AS total FROM orders WHERE n > 1 GROUP BY region
