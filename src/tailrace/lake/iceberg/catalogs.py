"""Catalogs of Iceberg tables, and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import RESTError

from ...errors import TargetLostError
from ..storage import options_of

_SQLITE = "sqlite:///"
_S3 = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_region": "s3.region",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
}
_CLIENTS = ("sqlalchemy", "botocore", "thrift")
"""Packages whose errors are those of a server, or of the way to it."""


@lru_cache(maxsize=64)
def catalog(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    """Returns a catalog, which is opened once in a process."""
    said = _storage(dict(properties).get("warehouse", "")) | dict(properties)
    if (file := said.get("uri", "")).startswith(_SQLITE):
        Path(file.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(name, **said)


def _storage(warehouse: str) -> dict[str, str]:
    """Returns pyiceberg's properties for the object store of a warehouse."""
    options = options_of(warehouse) or {}
    found = {name: options[key] for key, name in _S3.items() if options.get(key)}
    if found and "aws_virtual_hosted_style_request" in options:
        found["s3.force-virtual-addressing"] = options["aws_virtual_hosted_style_request"]
    return found


def is_lost(error: BaseException) -> bool:
    """Whether a catalog did not answer, or answered that it failed.

    >>> is_lost(TimeoutError()), is_lost(ValueError())
    (True, False)
    """
    if isinstance(error, FileNotFoundError):  # a file of the table
        return False
    client = type(error).__module__.partition(".")[0]
    return isinstance(error, (OSError, RESTError)) or client in _CLIENTS


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Raises TargetLostError if a catalog that is used in the block does not answer."""
    try:
        yield
    except Exception as error:
        if not is_lost(error):
            raise
        raise lost(where, error) from error


def lost(where: str, error: BaseException | None = None) -> TargetLostError:
    """Returns the error for a catalog that does not answer."""
    why = "" if error is None else f": {str(error).strip() or type(error).__name__}"
    return TargetLostError(
        f"the catalog does not answer{why}", where=where, hint="check `target.catalog`, and the catalog's log"
    )
