"""Says in one line what a Python lacks for `make setup`; runs on any Python 3."""

import sys
from importlib.util import find_spec

if sys.version_info < (3, 10):  # noqa: UP036 - this file is what says so
    have = sys.version.split()[0]
    sys.exit(f"tailrace needs Python 3.10 or newer, this is {have}: make PYTHON=python3.12 ...")
if find_spec("venv") is None or find_spec("ensurepip") is None:
    sys.exit("this Python cannot make virtual environments: apt install python3-venv (Debian, Ubuntu)")
