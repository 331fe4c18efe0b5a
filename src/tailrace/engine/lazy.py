"""Attributes that are computed on first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):  # noqa: N801 - used as a decorator
    """Like `functools.cached_property`, without its lock across instances (Python 3.11 and older).

    >>> class Square:
    ...     side = 3
    ...     @lazy
    ...     def area(self) -> int:
    ...         return self.side**2
    >>> square = Square()
    >>> square.area, "area" in square.__dict__
    (9, True)
    """

    def __init__(self, found: Callable[[Any], _T]) -> None:
        self._found = found
        self.__doc__ = found.__doc__

    @overload
    def __get__(self, one: None, kind: type) -> lazy[_T]: ...
    @overload
    def __get__(self, one: object, kind: type) -> _T: ...
    def __get__(self, one: object | None, kind: type) -> lazy[_T] | _T:
        if one is None:
            return self
        value = one.__dict__[self._found.__name__] = self._found(one)
        return value
