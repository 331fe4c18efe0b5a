"""What `tailrace apply` says of vendors' tables in addition to what it did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..apply.vendor import late_changes
from ..errors import ApplyError
from ..formats import convert
from ..formats.base import Read
from ..formats.report import ConversionReport, again, nothing
from ..targets.keyless import NAME_KEY

_NO_KEY = f"so rows are identified by all of their values; name the key, if there is one ({NAME_KEY})"

_LIVES = (
    "apply the changes of each RELID by themselves, to a new target, with a key that it has "
    "(`--option keys=`)"
)


def told_of_lives(error: Exception, found: Read) -> Exception:
    """The error; that of a NULL in a key says whether the table was made again with another key."""
    if not isinstance(error, ApplyError):
        return error
    table = (error.where or "").split(", change_seq ")[0]
    if "NULL in" not in error.what or (said := found.made_again.get(table)) is None:
        return error
    return ApplyError(error.what, where=error.where, hint=f"{said}: {_LIVES}")


def notes(
    found: Read,
    unkeyed: Iterable[str],
    late: Mapping[str, int],
    report: ConversionReport,
    path: str,
) -> list[str]:
    """The notes of a call.

    Args:
        found: what was read.
        unkeyed: the tables without a key whose rows are looked up.
        late: how many changes came late and are skipped, by table.
        report: what became of the rows that were read.
        path: where they were read.
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
