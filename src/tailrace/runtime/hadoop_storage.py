"""Object stores for what Spark itself reads and writes: its MERGE, mapped columns, vendors' folders.

Tasks in Python need none of this. Keys are set in the running session, so they stand neither in the command
line of the JVM nor in Spark's UI.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..execution.session import has_rdds
from ..lake import storage
from .jars import resolve_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")),
)
"""Maven coordinates of S3 for the Hadoop client of Spark 4.2; of Amazon's SDK only what it needs (the whole
has 600 MB)."""
EXCLUDED = (
    "software.amazon.awssdk:bundle", "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-client-api", "org.slf4j:slf4j-api", "commons-logging:commons-logging",
    "commons-codec:commons-codec",
    *(f"io.netty:netty-{name}" for name in (
        "codec-http", "codec-http2", "codec", "transport", "common", "buffer", "handler", "resolver",
        "transport-classes-epoll", "transport-native-unix-common",
    )),
)  # fmt: skip
"""Dependencies of these that Spark has."""
_NAMES = {
    "aws_endpoint_url": "endpoint",
    "aws_region": "endpoint.region",
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
}


def jars() -> list[Path]:
    """Returns the jars for S3 as local files; the first time, Ivy downloads them from Maven Central."""
    return resolve_jars(wanted=",".join(JARS), excluded=EXCLUDED, about="about 15 MB")


def needed() -> bool:
    """Whether this process knows a bucket of S3."""
    return any(bucket.startswith("s3://") for bucket in storage.registered())


def settings(bucket: str, options: Mapping[str, str]) -> dict[str, str]:
    """Returns Hadoop's settings of a bucket.

    >>> settings("s3://lake", {"aws_region": "eu-west-1", "aws_virtual_hosted_style_request": "false"})
    {'fs.s3a.bucket.lake.endpoint.region': 'eu-west-1', 'fs.s3a.bucket.lake.path.style.access': 'true'}
    """
    start = f"fs.s3a.bucket.{bucket.removeprefix('s3://')}"
    found = {f"{start}.{name}": options[key] for key, name in _NAMES.items() if options.get(key)}
    found[f"{start}.path.style.access"] = str(
        options.get("aws_virtual_hosted_style_request") == "false"
    ).lower()
    return found


def tell(session: SparkSession) -> None:
    """Makes the buckets that this process knows known to a session. Through Spark Connect, the server's own
    settings count."""
    if not has_rdds(session):
        return
    conf = session.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")  # Hadoop's own name of the scheme is s3a
    for bucket, options in storage.registered().items():
        if bucket.startswith("s3://"):
            for name, value in settings(bucket, options).items():
                conf.set(name, value)
