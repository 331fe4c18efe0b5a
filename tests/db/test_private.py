"""What a task writes is for its owner only, and holds no password; nor do command lines and messages."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from tailrace.capture import part_readers
from tailrace.cli.process import keep_private
from tailrace.errors import ConfigError
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

from .test_connections import ESCAPED, PASSWORD, server

__all__ = ["server"]
pytestmark = pytest.mark.db


def tailrace(*words: str, folder: Path, code: int = 0, **more: str) -> tuple[str, set[str]]:
    """Runs a command to its end, with that code; what it said, and all command lines of its processes."""
    command = [sys.executable, "-m", "tailrace", *words]
    lines: set[str] = set()
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **more}, umask=0o022, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        watched = psutil.Process(running.pid)
        while running.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                lines |= {" ".join(one.cmdline()) for one in watched.children(recursive=True)}
            time.sleep(0.05)
        said = running.stdout.read() if running.stdout else ""
    assert running.returncode == code, said
    return said, lines


def open_to_others(folder: Path, allowed: int = 0) -> list[str]:
    """Files and folders that somebody else may use in a way that is not allowed."""
    return [
        f"{stat.filemode(one.stat().st_mode)} {one}"
        for one in [folder, *folder.rglob("*")]
        if stat.S_IMODE(one.stat().st_mode) & 0o077 & ~allowed
    ]


@pytest.mark.slow
def test_passwords_stay_out_of_everything_and_others_out_of_files(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """From `init` to the baseline, in another process for each."""
    work = tmp_path / "work"
    work.mkdir(mode=0o700)
    url = f"postgresql://guest:{ESCAPED}@127.0.0.1:{server.port}/postgres"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"insert into a select generate_series(2, {part_readers.FEW_ROWS + 1})")
        admin.execute("analyze a")
    try:
        said, _ = tailrace("init", url, "--name", "shop", "public.a", folder=work)
        assert "SHOP_PASSWORD" in said
        more, lines = tailrace("-v", "capture", "shop.yaml", "--once", folder=work, SHOP_PASSWORD=ESCAPED)
        last, _ = tailrace("check", "shop.yaml", folder=work, SHOP_PASSWORD=ESCAPED)
    finally:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("delete from a where id > 1")
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            admin.execute("drop publication if exists tailrace_shop")
    assert lines  # of processes that read the baseline
    told = "\n".join([said, more, last, *lines]).encode()
    told += b"".join(one.read_bytes() for one in work.rglob("*") if one.is_file())
    assert PASSWORD.encode() not in told and ESCAPED.encode() not in told
    assert (work / "shop" / "log" / "_delta_log").is_dir() and (work / "shop" / "target").is_dir()
    assert open_to_others(work) == []


def test_a_wrong_umask_is_told(tmp_path: Path) -> None:
    for wrong in ("9", "rwx", "777", "-1"):
        with pytest.raises(ConfigError, match="is not a umask"):
            keep_private(wrong)
    command = [sys.executable, "-m", "tailrace", "formats"]
    env = {**os.environ, "TAILRACE_UMASK": "777"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is not a umask" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_what_spark_writes_is_for_its_owner_only(tmp_path: Path) -> None:
    """Hadoop gives files their permissions by itself."""
    work = tmp_path / "work"
    work.mkdir(mode=0o700)
    tables = Path(__file__).parents[2] / "examples" / "sqdr" / "tables"
    tailrace("convert", str(tables), "out", "--from", "sqdr", "--to", "qlik", folder=work, code=3)
    assert list((work / "out").rglob("*.parquet"))
    assert open_to_others(work) == []


@pytest.mark.slow
def test_what_a_task_writes_is_for_its_owner_only(server: EmbeddedPostgres, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir(mode=0o700)
    try:
        tailrace("init", server.tcp_url(), "--name", "shop", "public.a", folder=work)
        tailrace("run", "shop.yaml", "--once", folder=work)
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("insert into a values (2)")
        tailrace("run", "shop.yaml", "--once", folder=work)
    finally:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            admin.execute("drop publication if exists tailrace_shop")
    assert list((work / "shop" / "changes").rglob("*.parquet"))
    assert open_to_others(work) == []


@pytest.mark.slow
def test_a_group_may_read_when_it_is_told_so(server: EmbeddedPostgres, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    init = ("init", server.tcp_url(), "--name", "shop", "public.a")
    tailrace("--umask", "027", *init, folder=work)
    assert stat.S_IMODE((work / "shop.yaml").stat().st_mode) == 0o640
    tailrace(*init, "--force", "--file", "other.yaml", folder=work, TAILRACE_UMASK="022")
    assert stat.S_IMODE((work / "other.yaml").stat().st_mode) == 0o644
