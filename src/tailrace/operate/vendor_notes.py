"""The notes of `tailrace apply`: remarks on a vendor's tables, besides the results of applying them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..apply.vendor import applied_files
from ..errors import ApplyError
from ..formats import convert
from ..formats.base import Read
from ..formats.report import ConversionReport, again, nothing
from ..targets.keyless import NAME_KEY

_NO_KEY = f"so rows are identified by all of their values; name the key, if there is one ({NAME_KEY})"
_EACH_RELID = (
    "apply the changes of each RELID separately, to a new target, with a key that it has (`--option keys=`)"
)


def explain_null_key(error: Exception, found: Read) -> Exception:
    """Returns the error; one of a NULL in a key says if the table was created again with another key."""
    if not isinstance(error, ApplyError):
        return error
    table = (error.where or "").split(", change_seq ")[0]
    if "NULL in" not in error.what or (reason := found.made_again.get(table)) is None:
        return error
    return ApplyError(error.what, where=error.where, hint=f"{reason}: {_EACH_RELID}")


def notes(
    found: Read,
    keyless: Iterable[str],
    late: Mapping[str, Sequence[str]],
    report: ConversionReport,
    path: str,
) -> list[str]:
    """Returns the notes of a call.

    Args:
        found: the tables that were read.
        keyless: the tables without a key whose rows are looked up.
        late: the files with late changes, which are skipped, by table.
        report: the counts of the rows that were read.
        path: the path that was read.
    """
    texts = [*found.notes]
    texts += [f"{name} is called by its id: {why}" for name, why in sorted(found.unnamed.items())]
    texts += [f"{n}: {found.keyless.get(n, 'no key is known')}, {_NO_KEY}" for n in sorted(keyless)]
    texts += convert.waiting_rows(found.pending)
    texts += [f"older changes are skipped: {text}" for text in applied_files.late_files(late)]
    texts += [*again(report), *nothing(report, path)]
    for name, table in report.tables.items():
        texts += [f"{name}: {n:,} x {kind}: truncated" for kind, n in table.lost.items()]
    texts += [f"{name} has no changes: it is not applied" for name in found.control_tables]
    return texts + [f"{name} is not applied: {why}" for name, why in found.apart.items()]
