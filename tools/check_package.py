"""Builds sdist and wheel as they would be published, installs the wheel, runs its command; without network.

    python tools/check_package.py

The sdist is built from this folder and the wheel from the sdist; both go to a folder that is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]


def run(*words: str | Path, where: Path = ROOT, **env: str) -> str:
    """What a command prints; ends with its words when it fails."""
    ran = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=where, env=os.environ | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def wheel_mistakes(wheel: Path) -> list[str]:
    """What a wheel lacks, or has too much."""
    with ZipFile(wheel) as file:
        names = file.namelist()
        info = next(n.removesuffix("METADATA") for n in names if n.endswith(".dist-info/METADATA"))
        said = HeaderParser().parsestr(file.read(f"{info}METADATA").decode())
    wanted = [
        "tailrace/py.typed",
        "tailrace/__main__.py",
        f"{info}licenses/LICENSE",
        f"{info}entry_points.txt",
    ]
    found = [f"the wheel has no {name}" for name in wanted if name not in names]
    found += [f"the wheel has {n}" for n in names if not n.startswith(("tailrace/", info))]
    missing = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src/tailrace").rglob("*.py")} - {
        *names
    }
    found += [f"the wheel has no {name}" for name in sorted(missing)]
    if said["Requires-Python"] != ">=3.10" or said["License-Expression"] != "Apache-2.0":
        found.append("the wheel's metadata has another Python or license")
    return found


def sdist_mistakes(sdist: Path) -> list[str]:
    """What an sdist lacks: its tests can be run, and its pages be read."""
    with tarfile.open(sdist) as file:
        names = {n.partition("/")[2] for n in file.getnames()}
    wanted = [
        "pyproject.toml", "constraints.txt", "Makefile", "README.md", "docs/install.md", "tests/conftest.py",
        "deploy/prometheus/alerts.yml", "src/tailrace/py.typed",
    ]  # fmt: skip
    return [f"the sdist has no {name}" for name in wanted if name not in names]


def main() -> None:
    """Builds, looks, installs, runs."""
    with tempfile.TemporaryDirectory(prefix="tailrace-package-") as folder:
        home = Path(folder)
        run("-m", "build", "--no-isolation", "--outdir", home / "dist")
        (sdist,), (wheel,) = (list((home / "dist").glob(end)) for end in ("*.tar.gz", "*.whl"))
        if mistakes := [*sdist_mistakes(sdist), *wheel_mistakes(wheel)]:
            sys.exit("\n".join(mistakes))
        site = home / "site"
        run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
            "--no-warn-script-location", "--target", site, wheel)  # fmt: skip
        alone = {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
        where = run("-c", "import tailrace; print(tailrace.__file__)", where=home, **alone).strip()
        if not where.startswith(str(site)):
            sys.exit(f"the installed package was not used, but {where}")
        script = site / "bin" / "tailrace"
        version = run(script, "--version", where=home, **alone).strip()
        run(script, "schema", where=home, **alone)
        run(script, "formats", where=home, **alone)
        sys.stdout.write(f"{sdist.name} and {wheel.name} were built; {version} runs from the wheel\n")


if __name__ == "__main__":
    main()
