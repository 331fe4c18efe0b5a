"""Registry of vendors' change-table formats, by import path and by entry point.

Other packages register a `Format` under the entry point group `tailrace.formats`.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from pydantic import ValidationError

from ..config.base import plain
from ..errors import ConfigError
from .base import Format, Options

OURS = {
    "tailrace": "tailrace.formats.tailrace:FORMAT",
    "qlik": "tailrace.formats.qlik:FORMAT",
    "openedge": "tailrace.formats.openedge:FORMAT",
    "sqdr": "tailrace.formats.sqdr:FORMAT",
    "soliddb": "tailrace.formats.soliddb:FORMAT",
}
"""Format name -> import path."""
GROUP = "tailrace.formats"


def names() -> list[str]:
    """Returns the names of all formats: tailrace's, then those of other packages."""
    return list(dict.fromkeys([*OURS, *(e.name for e in entry_points(group=GROUP))]))


@cache
def get(name: str) -> Format:
    """Returns the format of that name.

    Raises:
        ConfigError: it does not exist (the nearest name is in the hint), or its package cannot be imported.

    >>> get("glik")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: no format 'glik'
      hint: did you mean 'qlik'? there are tailrace, qlik, openedge, sqdr, soliddb
    """
    path = OURS.get(name) or next((e.value for e in entry_points(group=GROUP) if e.name == name), None)
    if path is None:
        known = names()
        near = difflib.get_close_matches(name.lower(), known, 1, 0.4)
        did = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no format {name!r}", hint=f"{did}there are {', '.join(known)}")
    module, _, attribute = path.partition(":")
    try:
        result = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"format {name!r} cannot be imported from {path}: {error}") from error
    if not isinstance(result, Format):
        raise ConfigError(f"format {name!r}: {path} is not a tailrace.formats.base.Format")
    return result


def options(form: Format, given: dict[str, str]) -> Options:
    """Returns a format's options from `name=value` texts; missing ones have their defaults.

    Raises:
        ConfigError: the format does not have an option (the nearest name is in the hint), or a value is
            wrong.
    """
    known = form.options.model_fields
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.4)
            did = f"did you mean {near[0]!r}? " if near else ""
            listed = ", ".join(known) or "none"
            raise ConfigError(f"format {form.name} has no option {name!r}", hint=f"{did}it has: {listed}")
    try:
        return form.options.model_validate(given)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {plain(e['msg'])}" for e in error.errors())
        raise ConfigError(f"options of format {form.name}: {said}") from error


__all__ = ["GROUP", "OURS", "Format", "get", "names", "options"]
