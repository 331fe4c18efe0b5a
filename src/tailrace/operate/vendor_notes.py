"""The notes that `tailrace apply` adds to its results for vendors' tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..apply.vendor import late_changes
from ..errors import ApplyError
from ..formats import convert
from ..formats.base import Read
from ..formats.report import ConversionReport, again, nothing
from ..targets.keyless import NAME_KEY

_NO_KEY = f"so rows are identified by all of their values; name the key, if there is one ({NAME_KEY})"

_EACH_RELID = (
    "apply the changes of each RELID by themselves, to a new target, with a key that it has "
    "(`--option keys=`)"
)


def explain_null_key(error: Exception, found: Read) -> Exception:
    """Returns the error. A NULL in a key may come from a table that was created again with another key, and
    the hint explains that."""
    if not isinstance(error, ApplyError):
        return error
    table = (error.where or "").split(", change_seq ")[0]
    if "NULL in" not in error.what or (said := found.made_again.get(table)) is None:
        return error
    return ApplyError(error.what, where=error.where, hint=f"{said}: {_EACH_RELID}")


def notes(
    found: Read,
    unkeyed: Iterable[str],
    late: Mapping[str, int],
    report: ConversionReport,
    path: str,
) -> list[str]:
    """Returns the notes of a call.

    Args:
        found: what was read.
        unkeyed: the tables without a key whose rows are looked up.
        late: the number of late changes that are skipped, by table.
        report: the outcome of the rows that were read.
        path: the path that they were read from.
    """
    made = [*found.notes]
    made += [f"{name} is called by its id: {why}" for name, why in sorted(found.unnamed.items())]
    made += [f"{n}: {found.keyless.get(n, 'no key is known')}, {_NO_KEY}" for n in sorted(unkeyed)]
    made += convert.waiting_rows(found.pending)
    made += [f"{text}: skipped" for text in late_changes.said(late)]
    made += [*again(report), *nothing(report, path)]
    for name, table in report.tables.items():
        made += [f"{name}: {n:,} x {kind}: truncated" for kind, n in table.lost.items()]
    made += [f"{name} has no changes: it is not applied" for name in found.control_tables]
    return made + [f"{name} is not applied: {why}" for name, why in found.apart.items()]
