-- mixed
-- the groups are `lower(customer)` instead of `upper(customer)`, and the state has the former keys

SELECT upper(customer) AS c, sum(n) AS s FROM orders GROUP BY upper(customer)

-- becomes

SELECT lower(customer) AS c, sum(n) AS s FROM orders GROUP BY lower(customer)
