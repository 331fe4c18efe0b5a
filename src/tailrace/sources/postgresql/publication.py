"""The tables of a publication, from the catalog only.

`pg_get_publication_tables`, and the view over it, open every table of the publication and wait for its lock.
"""

from __future__ import annotations

from .connect import Session

_MEMBERS = """
with recursive pub as (select xmin, * from pg_publication where pubname = %s),
one as (
  select oid, relnamespace, relkind from pg_class
  where relkind in ('r', 'p') and relpersistence = 'p' and oid >= 16384),
named as (
  select one.oid from one join pub on puballtables
  union select r.prrelid from pg_publication_rel r join pub on pub.oid = r.prpubid{schemas}),
up as (
  select n.oid, i.inhparent as relid from named n join pg_inherits i on i.inhrelid = n.oid
  union select u.oid, i.inhparent from up u join pg_inherits i on i.inhrelid = u.relid),
down as (
  select oid as relid from named
  union select i.inhrelid from down d join pg_inherits i on i.inhparent = d.relid
    join one p on p.oid = d.relid and p.relkind = 'p'),
members as (
  select n.oid from named n join pub on pubviaroot
  where not exists (select from up join named a on a.oid = up.relid join one p on p.oid = a.oid
    where up.oid = n.oid and p.relkind = 'p')
  union select d.relid from down d join pub on not pubviaroot join one on one.oid = d.relid
  where one.relkind = 'r')
"""
_SCHEMAS = """
  union select one.oid from one join pg_publication_namespace n on n.pnnspid = one.relnamespace
    join pub on pub.oid = n.pnpubid"""


def publication_query(session: Session, query: str) -> bytes:
    """Returns a query over `pub`, the row of a publication (its name is the first parameter), and `members`,
    the oids of its tables.

    Members are roots if it publishes via partition roots, otherwise leaves.
    """
    schemas = _SCHEMAS if session.info.server_version >= 150000 else ""
    return (_MEMBERS.format(schemas=schemas) + query).encode()
