-- lost
-- the groups are `customer`, `region` instead of `customer`, and Spark stores STRING, STRING instead of STRING

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, region, sum(amount) AS total FROM orders GROUP BY customer, region
