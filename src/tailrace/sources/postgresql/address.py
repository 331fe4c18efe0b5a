"""Addresses of PostgreSQL databases: their parts, and which of them may be shown."""

from __future__ import annotations

from ...config import addresses
from ...errors import ConfigError

_SECRETS = ("password", "sslpassword")


def parsed(url: str) -> dict[str, str]:
    """The parts of an address, by libpq's names.

    Raises:
        ConfigError: it cannot be read; without what libpq says, which quotes it.
    """
    import psycopg  # not imported by those who only read task files
    from psycopg.conninfo import conninfo_to_dict

    if "://" in url:
        addresses.check(url)
    try:
        return {k: str(v) for k, v in conninfo_to_dict(url).items()}
    except psycopg.Error:
        pass
    raise ConfigError(
        "the address cannot be parsed: its parameters are not valid for PostgreSQL",
        hint="write postgresql://user:password@host:port/database?name=value&name=value",
    )


def address(url: str) -> str:
    """A server's address for messages: without user, password and options.

    >>> address("postgresql://me:secret@db:5433/shop")
    'postgresql://db:5433/shop'
    """
    given = parsed(url)
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{given.get('host') or 'localhost'}{port}/{given.get('dbname') or ''}"


def secrets(url: str) -> list[str]:
    """The passwords in an address, decoded from percent-encoding.

    >>> secrets("postgresql://me:a%40b@db/shop?sslpassword=c"), secrets("postgresql://me@db")
    (['a@b', 'c'], [])
    """
    given = parsed(url)
    return [given[name] for name in _SECRETS if given.get(name)]
