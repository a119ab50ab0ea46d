-- kept
-- both queries compute the same state

SELECT customer, sum(amount) AS total FROM orders GROUP BY customer

-- becomes

select CUSTOMER as customer, SUM(Amount) as total from orders group by Customer
