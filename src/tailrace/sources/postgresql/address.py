"""Addresses of PostgreSQL databases: parsing, and forms without secrets."""

from __future__ import annotations

from ...config import addresses
from ...errors import ConfigError

_SECRETS = ("password", "sslpassword")


def parsed(url: str) -> dict[str, str]:
    """Returns the parts of an address by libpq's names.

    Raises:
        ConfigError: it cannot be parsed; libpq's message, which quotes the address, is left out.
    """
    import psycopg  # late, so that reading a task file does not need it
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
    """Returns a server's address for messages, without user, password and options.

    >>> address("postgresql://me:secret@db:5433/shop")
    'postgresql://db:5433/shop'
    """
    given = parsed(url)
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{given.get('host') or 'localhost'}{port}/{given.get('dbname') or ''}"


def secrets(url: str) -> list[str]:
    """Returns the passwords in an address, percent-decoded.

    >>> secrets("postgresql://me:a%40b@db/shop?sslpassword=c"), secrets("postgresql://me@db")
    (['a@b', 'c'], [])
    """
    given = parsed(url)
    return [given[name] for name in _SECRETS if given.get(name)]
