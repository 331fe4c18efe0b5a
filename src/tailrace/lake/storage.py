"""Addresses of tables and small files: local folders, and folders of object stores (`s3://`, `gs://`,
`abfss://`).

Options of object stores have the names that delta-rs and obstore share (`aws_region`). A process knows the
options of each bucket (`register`); the driver sends them to Spark's tasks with their work, so they appear in
no command line and in no page of Spark's UI. For other buckets, the options come from the environment and
the AWS configuration files. Keys of instance roles are found by the libraries themselves.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs

SCHEMES = ("s3", "gs", "abfss")
LOCAL = "file://"
"""The prefix of local URIs."""
_TRIES = 10
"""The maximum number of attempts of a request to an object store by Arrow; the other libraries have their
own."""
_registered: dict[str, dict[str, str]] = {}


def is_remote(address: str) -> bool:
    """Whether an address is in an object store.

    >>> is_remote("s3://lake/shop"), is_remote("/lake/shop"), is_remote("file:///lake")
    (True, False, False)
    """
    return address.partition("://")[0] in SCHEMES and "://" in address


def bucket_of(address: str) -> str:
    """Returns the scheme and bucket of an address.

    >>> bucket_of("s3://lake/shop/orders")
    's3://lake'
    """
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def join(folder: str, *names: str) -> str:
    """Returns the address of something in a folder.

    >>> join("s3://lake/shop/", "control"), join("/lake", "a", "b")
    ('s3://lake/shop/control', '/lake/a/b')
    """
    return "/".join([folder.rstrip("/"), *names])


def within(address: str, folder: str) -> bool:
    """Whether an address is a folder, or is in it.

    >>> within("s3://lake/a/b", "s3://lake/a"), within("/lake/ab", "/lake/a")
    (True, False)
    """
    return f"{address.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def register(bucket: str, options: Mapping[str, str]) -> None:
    """Makes the options of a bucket known to this process."""
    _registered[bucket] = dict(options)


def registered() -> dict[str, dict[str, str]]:
    """Returns the options of all buckets that this process knows, for its Spark tasks."""
    return {bucket: dict(options) for bucket, options in _registered.items()}


def register_all(there: Mapping[str, Mapping[str, str]]) -> None:
    """Makes the options that `registered` returned in another process known to this one."""
    for bucket, options in there.items():
        register(bucket, options)


def options_of(address: str) -> dict[str, str] | None:
    """Returns the options of the object store of an address; None for local folders."""
    if not is_remote(address):
        return None
    if (found := _registered.get(bucket_of(address))) is not None:
        return dict(found)
    return s3_options() if address.startswith("s3://") else {}


def s3_options(
    *,
    endpoint: str = "",
    region: str = "",
    path_style: bool | None = None,
    profile: str = "",
    access_key: str = "",
    secret_key: str = "",
    session_token: str = "",
) -> dict[str, str]:
    """Returns the options of an S3 store: what is given, else what the environment says (unless a profile is
    given), else what the AWS configuration files say of the profile.

    Without keys in any of them, the options have none, and each library asks for those of the instance's
    role.

    Raises:
        ValueError: there is no such profile.
    """
    env: Mapping[str, str] = {} if profile else os.environ
    files = _profile(profile)
    endpoint = (
        endpoint or _first(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") or files.get("endpoint_url", "")
    )
    keys = (access_key, secret_key, session_token)
    if not access_key:
        keys = tuple(  # type: ignore[assignment]
            _first(env, f"AWS_{name.upper()}") for name in _KEYS
        )
    if not keys[0]:
        keys = tuple(files.get(f"aws_{name}", "") for name in _KEYS)  # type: ignore[assignment]
    hosts = not (bool(endpoint) if path_style is None else path_style)
    found = {
        "aws_endpoint_url": endpoint,
        "aws_region": region
        or _first(env, "AWS_REGION", "AWS_DEFAULT_REGION")
        or files.get("region", "us-east-1"),
        "aws_virtual_hosted_style_request": str(hosts).lower(),
        "aws_conditional_put": "etag",
        **{f"aws_{name}": key for name, key in zip(_KEYS, keys, strict=True)},
        "allow_http": "true" if endpoint.startswith("http://") else "",
    }
    return {name: value for name, value in found.items() if value}


_KEYS = ("access_key_id", "secret_access_key", "session_token")


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := env.get(name, ""))), "")


def _profile(name: str) -> dict[str, str]:
    """Returns what the AWS configuration files say of a profile, or of the one that the environment names."""
    named = name or os.environ.get("AWS_PROFILE", "")
    found = dict[str, str]()
    for variable, default, prefix in (
        ("AWS_CONFIG_FILE", "~/.aws/config", "profile "),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", ""),
    ):
        parser = configparser.RawConfigParser()
        parser.read(Path(os.environ.get(variable) or default).expanduser())
        section = f"{prefix}{named}" if named and named != "default" else "default"
        if parser.has_section(section):
            found |= dict(parser.items(section))
    if name and not found:
        raise ValueError(f"the AWS configuration files have no profile {name!r}")
    return found


def filesystem(address: str) -> tuple[pa.fs.FileSystem, str]:
    """Returns Arrow's file system for an address or local path, and the path in it.

    >>> filesystem("file:///lake%5B1%5D/shop.item/")[1], filesystem("file:///lake[1]/shop.item/")[1]
    ('/lake[1]/shop.item', '/lake[1]/shop.item')
    """
    import pyarrow as pa
    import pyarrow.fs

    if is_remote(address):
        return _remote(bucket_of(address), tuple(sorted((options_of(address) or {}).items()))), _path(address)
    if address.startswith(LOCAL):  # Arrow refuses characters that delta-rs does not encode
        return pa.fs.LocalFileSystem(), str(Path(unquote(address.removeprefix(LOCAL))))
    return pa.fs.LocalFileSystem(), str(Path(address).absolute())


def make_folder(address: str) -> None:
    """Creates a local folder if it does not exist; object stores have no folders."""
    if not is_remote(address):
        Path(filesystem(address)[1]).mkdir(parents=True, exist_ok=True)


def _path(address: str) -> str:
    """Returns the path in Arrow's file system: with the bucket for S3, in the bucket for others."""
    scheme, _, rest = address.partition("://")
    bucket, _, path = rest.partition("/")
    path = unquote(path).strip("/")
    return f"{bucket}/{path}".rstrip("/") if scheme == "s3" else path


@lru_cache(maxsize=64)
def _remote(bucket: str, options: tuple[tuple[str, str], ...]) -> pa.fs.FileSystem:
    import pyarrow as pa
    import pyarrow.fs

    said = dict(options)
    if not bucket.startswith("s3://"):
        from deltalake.fs import DeltaStorageHandler

        return pa.fs.PyFileSystem(DeltaStorageHandler(bucket, said))
    endpoint = urlsplit(said.get("aws_endpoint_url", ""))
    more: dict[str, Any] = {}
    if endpoint.netloc:
        more |= {"scheme": endpoint.scheme, "endpoint_override": endpoint.netloc}
        more["force_virtual_addressing"] = said.get("aws_virtual_hosted_style_request") == "true"
    return pa.fs.S3FileSystem(
        region=said.get("aws_region"),
        access_key=said.get("aws_access_key_id"),
        secret_key=said.get("aws_secret_access_key"),
        session_token=said.get("aws_session_token"),
        retry_strategy=pa.fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        **more,
    )


def hadoop_address(address: str) -> str:
    """Returns an address as Hadoop names it.

    >>> hadoop_address("s3://lake/shop"), hadoop_address("/lake/shop")
    ('s3a://lake/shop', '/lake/shop')
    """
    return f"s3a://{address.removeprefix('s3://')}" if address.startswith("s3://") else address
