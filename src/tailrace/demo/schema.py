"""Defines the schema `shop`: deliberately difficult tables, and their initial rows."""

from __future__ import annotations

TABLES = """
create extension if not exists citext schema public;
create schema shop;
create domain shop.email as text check (value like '%@%');
create type shop.status as enum ('new', 'paid', 'sent', 'returned');

-- random hexadecimal text of about that length: does not compress, so 8 kB and more are stored out of line
create function shop.noise(chars int) returns text language sql volatile as
  $$ select string_agg(md5(random()::text || i), '') from generate_series(1, chars / 32 + 1) as i $$;

create table shop.customer (
  id bigserial primary key,
  email shop.email not null,
  nick public.citext unique,
  profile jsonb,
  address inet,
  joined timestamptz not null,
  note text
);
alter table shop.customer replica identity full;

create table shop.product (
  sku uuid primary key,
  name varchar(80) not null,
  price numeric(12,2),
  weight numeric,
  grade shop.status,
  tags text[],
  picture bytea,
  sold_in daterange,
  warranty interval,
  stock int
);

create table shop.orders (
  customer_id bigint,
  number int,
  quantity int not null,
  price numeric(10,2) not null,
  total numeric generated always as (quantity * price) stored,
  placed timestamp not null,
  state shop.status,
  comment text,
  primary key (customer_id, number)
);
alter table shop.orders replica identity full;

-- no key at all: rows may be duplicates
create table shop.event (kind text, amount int, at timestamp, payload json);
alter table shop.event replica identity full;

create table shop.reading (
  sensor int,
  at timestamptz,
  value double precision,
  flags bit(8),
  primary key (sensor, at)
) partition by range (at);
create table shop.reading_2025 partition of shop.reading for values from (minvalue) to ('2026-01-01');
create table shop.reading_2026 partition of shop.reading for values from ('2026-01-01') to (maxvalue);

create table shop.document (id int primary key, title text, revision int, body text);
alter table shop.document alter column body set storage external;

create table shop."Mixed Case" (
  "Order" int primary key,
  "select" text,
  "camelCase" numeric(8,3),
  "from" date
);
"""

ROWS = """
select setseed(0.42);

insert into shop.customer (email, nick, profile, address, joined, note)
select 'c' || i || '@example.com', case when i % 11 > 0 then 'Nick' || i end,
  case when i % 7 > 0 then jsonb_build_object('visits', i % 50, 'likes', array['a', 'ü', null]) end,
  case when i % 5 > 0 then ('10.' || i % 250 || '.0.0/16')::inet end,
  case i % 100 when 0 then 'infinity'::timestamptz when 1 then '-infinity'
    else '2024-01-01 UTC'::timestamptz + i * interval '37 minutes 0.000123 seconds' end,
  case when i % 3 > 0 then 'note ' || i end
from generate_series(1, 2000) as i;

insert into shop.product
select md5('product' || i)::uuid, 'Product "' || i || '", größe', i % 1000 + 0.99,
  case i % 40 when 0 then 'NaN'::numeric when 1 then 1e60 else i / 7.0 end,
  (array['new', 'paid', 'sent', null])[1 + i % 4]::shop.status,
  case when i % 6 > 0 then array['tag ' || i, 'a,b', null, ''] end,
  case when i % 4 > 0 then decode(md5(i::text), 'hex') end,
  daterange('2024-01-01'::date + i, case when i % 9 > 0 then '2027-01-01'::date end),
  make_interval(years => i % 3, days => i % 28, secs => i * 1.5), i % 500
from generate_series(1, 500) as i;

insert into shop.orders (customer_id, number, quantity, price, placed, state, comment)
select 1 + i % 1500, i, 1 + i % 9, (i % 300) + 0.5, '2025-06-01'::timestamp + i * interval '11 seconds',
  (enum_range(null::shop.status))[1 + i % 4], case when i % 2 = 0 then 'please hurry' end
from generate_series(1, 5000) as i;

insert into shop.event
select (array['view', 'click', null])[1 + i % 3], i % 10, '2025-01-01'::timestamp + i % 20 * interval '1 day',
  case when i % 4 > 0 then '{"a" :  1}'::json end
from generate_series(1, 3000) as i;

insert into shop.reading
select i % 20, '2025-07-01 UTC'::timestamptz + i * interval '2 hours',
  case i % 50 when 0 then 'NaN' when 1 then 'Infinity' else sin(i) end, (i % 256)::bit(8)
from generate_series(1, 4000) as i;

insert into shop.document select i, 'Title ' || i, 1, shop.noise(9000 + i) from generate_series(1, 60) as i;

insert into shop."Mixed Case" select i, 'row ' || i, i / 8.0, '2026-01-01'::date + i
from generate_series(1, 100) as i;
"""
