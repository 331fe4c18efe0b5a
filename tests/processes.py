"""Other processes for tests: copies of one that has loaded what most of them need, so each is there at once. They
have the environment in which the first of them was started."""

from __future__ import annotations

import multiprocessing

copies = multiprocessing.get_context("forkserver")
copies.set_forkserver_preload(["tailrace.cli.main", "tailrace.operate.status", "typer.testing", "pytest"])
