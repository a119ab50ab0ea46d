-- mzplan does not create target tables; when one is missing, the error prints this.
CREATE TABLE public.orders (id bigint PRIMARY KEY, customer text, gross numeric(14,3));
CREATE TABLE public.customers (name text PRIMARY KEY, city text);
CREATE TABLE public.clicks (page text, ts timestamptz);
CREATE TABLE public.spending (customer text PRIMARY KEY, orders bigint, spent numeric(20,2));
