-- mixed
-- `sum(map('A', n, 'a', m).a)` takes the place of `sum(map('A', n, 'a', m).A)`, and Spark stores aggregates by position

SELECT customer, sum(map('A', n, 'a', m).A) AS v FROM orders GROUP BY customer

-- becomes

SELECT customer, sum(map('A', n, 'a', m).a) AS v FROM orders GROUP BY customer
