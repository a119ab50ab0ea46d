-- lost
-- the groups are `window(ts, '1 minute', '30 seconds')`, `customer` instead of `window(ts, '1 minute')`, `customer`, and Spark stores STRUCT<start: TIMESTAMP,end: TIMESTAMP>, which may be NULL, STRING instead of STRUCT<start: TIMESTAMP,end: TIMESTAMP>, STRING
-- output: append

SELECT window(ts, '1 minute').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute'), customer

-- becomes

SELECT window(ts, '1 minute', '30 seconds').start AS minute, customer, sum(amount) AS total FROM orders GROUP BY window(ts, '1 minute', '30 seconds'), customer
