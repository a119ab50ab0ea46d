-- By default, mzplan creates no target tables. If one is missing, the error prints its CREATE TABLE.
CREATE TABLE public.orders (id bigint PRIMARY KEY, customer text, gross numeric(14,3));
CREATE TABLE public.customers (name text PRIMARY KEY, city text);
CREATE TABLE public.clicks (page text, ts timestamptz);
CREATE TABLE public.spending (customer text PRIMARY KEY, orders bigint, spent numeric(20,2));
