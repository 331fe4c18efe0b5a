"""The number of connections that the server, the database and the role still allow."""

from __future__ import annotations

from .connect import Session

OWN = 3
"""Connections of capture besides readers of a baseline: for the catalog, the stream and the snapshot."""
LEAST = 2
"""The minimum number of baseline readers; a reader that cannot connect waits."""
_LIMITS = """
select * from (
  select format('role %I may have %s connections', rolname, rolconnlimit) as said, rolconnlimit as most,
    (select count(*) from pg_stat_activity where usesysid = r.oid) as used
  from pg_roles r where rolname = current_user and rolconnlimit >= 0 and not rolsuper
  union all
  select format('database %I takes %s connections', datname, datconnlimit), datconnlimit,
    (select count(*) from pg_stat_activity where datid = d.oid and usesysid is not null)
  from pg_database d, pg_roles r where datname = current_database() and rolname = current_user
    and datconnlimit >= 0 and not rolsuper
  union all
  select format('the server takes %s connections of roles like this one', most), most,
    (select count(*) from pg_stat_activity where usesysid is not null)
      - (select count(*) from pg_stat_replication)
  from (select current_setting('max_connections')::int - case when rolsuper then 0 else
      current_setting('superuser_reserved_connections')::int
      + coalesce(current_setting('reserved_connections', true)::int, 0) end as most
    from pg_roles where rolname = current_user) as server) as every
order by most - used limit 1
"""


def free(session: Session) -> tuple[int, str]:
    """Returns the number of further connections that are allowed now, and the tightest limit as text."""
    said, most, used = session.execute(_LIMITS).fetchone() or ("", 0, 0)
    return int(most) - int(used), f"{said}, and {used} are in use"
