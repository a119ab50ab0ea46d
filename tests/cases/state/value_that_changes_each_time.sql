-- unknown
-- mzplan can't compare the states: CURRENT_TIMESTAMP() changes each time

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(amount) AS total FROM orders WHERE ts < current_timestamp() GROUP BY customer
