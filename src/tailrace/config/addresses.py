"""Checks of database addresses as typed by a user, before anything connects.

Messages contain no part of an address that may be its password: in a malformed one, that part is unknown.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from ..errors import ConfigError
from ..model.nearest import meant

SCHEMES = ("postgresql", "postgres", "soliddb")
"""Schemes of a source's address; `sources` has an opener for each."""

_ODD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%\w]*\]|[^\[\]:]*)(:(\d*))?")


def source_scheme(url: str) -> str:
    """The scheme of a source's address.

    >>> source_scheme("postgresql://me@db/shop")
    'postgresql'
    >>> source_scheme("postgesql://me@db/shop")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: no source supports postgesql:// addresses
      where: source.url
      hint: did you mean postgresql?
    """
    check(url)
    scheme = url.partition("://")[0]
    if scheme in SCHEMES:
        return scheme
    known = " or ".join(f"{name}://user@host:port/database" for name in SCHEMES)
    raise ConfigError(
        f"no source supports {scheme}:// addresses" if scheme else "the source's address has no scheme",
        where="source.url",
        hint=meant(scheme, SCHEMES, many=1, cutoff=0.6) or f"write {known}",
    )


def check(url: str) -> None:
    """Raises ConfigError for an invalid address.

    >>> check("postgresql://me:secret@db:5432/shop?sslmode=require")
    >>> check("postgresql://me:secret@db:54321234/shop")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: the port in the address is not valid: it must be 1 to 65535
      hint: write postgresql://user:password@host:port/database; %40 is @, %2F is /, %3A is :, %25 is %
    """
    scheme, sign, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    hosts = authority.rpartition("@")[2]
    found = [_HOST.fullmatch(one) for one in hosts.split(",")]
    if not sign:
        raise _bad("there is no :// in the address", scheme="postgresql")
    if not re.fullmatch(r"[\w+.-]*", scheme):
        raise _bad("what precedes :// in the address is not a scheme", scheme="postgresql")
    if re.search(r"[\s\x00-\x1f]", url):
        raise _bad("there is a space or a line break in the address", scheme)
    if authority.count("@") > 1 or "@" in rest.partition("?")[0][len(authority) :]:
        raise _bad("there are too many @ in the address: the host is ambiguous", scheme)
    if _ODD_PERCENT.search(rest):
        raise _bad("there is a % in the address that is not followed by two hex digits", scheme)
    try:
        unquote_to_bytes(rest).decode()
    except UnicodeDecodeError:
        raise _bad("the % escapes in the address are not UTF-8", scheme) from None
    if not all(found):
        raise _bad("the host in the address is not a name or IP address, or the port is not a number", scheme)
    if any(one and one[3] and not 0 < int(one[3][:6]) < 65536 for one in found):
        raise _bad("the port in the address is not valid: it must be 1 to 65535", scheme)


def _bad(what: str, scheme: str) -> ConfigError:
    known = scheme if re.fullmatch(r"[a-z]{1,12}", scheme) else "postgresql"
    return ConfigError(
        what,
        hint=f"write {known}://user:password@host:port/database; %40 is @, %2F is /, %3A is :, %25 is %",
    )
