"""A process that ends at a fail point, in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from tailrace.lake import failpoints


class Ended(BaseException):
    """The process is gone: what is on its way has no say, and nothing on the way may take it for an error."""


@contextmanager
def ends(point: str, nth: int = 1) -> Iterator[None]:
    """What is done in the block ends the `nth` time that it comes to the point, which it has to."""

    def met(one: Any) -> None:
        one.left -= 1
        if one.left <= 0:  # nothing goes on in another thread either
            raise Ended(one.name)

    with mock.patch.object(failpoints, "_met", met):
        failpoints.arm(f"{point}:{nth}")
        try:
            with pytest.raises(Ended, match=f"^{point}$"):
                yield
        finally:
            failpoints.arm(None)
