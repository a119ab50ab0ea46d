-- kept
-- both queries compute the same state

SELECT upper(customer) AS c, sum(amount) AS total FROM orders GROUP BY upper(customer)

-- becomes

SELECT upper(customer) AS c, sum(amount) AS total FROM orders GROUP BY c
