"""Settings of a Spark session that starts here: what is little, and what a session for it leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.runtime import local_settings as settings
from tailrace.runtime.local_settings import LITTLE_BYTES, is_little, local_settings

pytestmark = pytest.mark.unit


def test_files_of_a_folder_count_together(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "a").write_bytes(b"x" * (LITTLE_BYTES - 1))
    (tmp_path / "in" / "b").write_bytes(b"x")
    assert (is_little(str(tmp_path)), is_little(str(tmp_path / "a"))) == (True, True)
    (tmp_path / "in" / "b").write_bytes(b"xx")
    assert (is_little(str(tmp_path)), is_little(str(tmp_path / "a"))) == (False, True)


def test_a_place_that_is_no_local_file_is_not_known_to_be_little(tmp_path: Path) -> None:
    assert [is_little(p) for p in (f"{tmp_path}/none", "s3://bucket/changes")] == [False, False]


def test_for_little_no_code_is_generated_one_compiler_works_and_a_job_has_one_task() -> None:
    usual, little = (local_settings("local[2]", little=one) for one in (False, True))
    differs = {k: little[k] for k in little if little[k] != usual.get(k)}
    options = differs.pop("spark.driver.extraJavaOptions")
    assert differs == {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.default.parallelism": "1",
        "spark.sql.shuffle.partitions": "1",
    }
    assert "-XX:TieredStopAtLevel=1" in options
    assert "-XX:TieredStopAtLevel=1" not in usual["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("kind", ["driver", "executor"])
def test_huge_methods_are_compiled(kind: str) -> None:
    assert "-XX:-DontCompileHugeMethods" in local_settings("local[2]")[f"spark.{kind}.extraJavaOptions"]


@pytest.mark.parametrize("kernel_says", [True, False])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_is_read_and_not_set_for_a_moment(
    kernel_says: bool, umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads write files meanwhile."""

    def refused(_: int) -> int:
        raise AssertionError("the umask was set")

    if not kernel_says:
        monkeypatch.setattr(settings, "_STATUS", tmp_path / "none")
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", refused)
            found = [local_settings("local[2]")["spark.hadoop.fs.permissions.umask-mode"] for _ in range(2)]
    finally:
        os.umask(before)
    assert found == [f"{umask:03o}"] * 2
