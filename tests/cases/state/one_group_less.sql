-- lost
-- the groups are `customer` instead of `customer`, `region`, and Spark stores STRING instead of STRING, STRING

SELECT customer, region, sum(amount) AS total FROM orders GROUP BY customer, region

-- becomes

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
