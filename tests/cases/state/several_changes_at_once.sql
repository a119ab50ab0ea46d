-- mixed
-- `sum(tax)` takes the place of `sum(amount)`, and Spark stores aggregates by position; `n > 1` is no longer a condition below the state: the state has rows that the former query chose

SELECT customer, sum(amount) AS total FROM orders WHERE n > 1 AND amount > 0 GROUP BY customer

-- becomes

SELECT customer, sum(tax) AS total FROM orders WHERE amount > 0 GROUP BY customer
