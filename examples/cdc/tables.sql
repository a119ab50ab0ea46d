-- In the database shop. REPLICA IDENTITY FULL: notes may be large, and PostgreSQL would leave a large value out
-- of the log of an update that does not change it.
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2), status text, note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
