"""`tailrace apply`: a vendor's change tables to Delta targets, bad rows stopped at or kept aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import convert
from .apply import incoming
from .apply.targets.delta import DeltaTarget
from .change import ChangeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession,
    changes: str,
    form: str,
    given: Mapping[str, str],
    target: str,
    *,
    app_id: str = "apply",
    fail: bool = True,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Applies the change tables at a path to the Delta tables under `target`.

    Gives `tables` (one dictionary a table: name, rows by kind, and what was done), `bad` (rows kept aside)
    and `rejects` (where). A table without key options or metadata has no key: then inserts are appended.

    Raises:
        FormatError: a bad row, when `fail`; change sequences that cannot be followed.
        ApplyError: changes that cannot be applied.
    """
    side = convert.side(form, changes, given)
    found = convert.read(spark, side)
    watched = {n: (ct, *convert.observed(ct, [], fail=fail)) for n, ct in found.changes.items()}
    good = {n: ct.with_df(df) for n, (ct, df, _) in watched.items()}
    place = DeltaTarget(spark, target, app_id=app_id)
    try:
        tables = [_one(place, n, ct, dry_run=dry_run) for n, ct in sorted(good.items())]
    except Exception as error:
        raise convert.reason(error, changes) from error
    report = convert.Report()
    for name, (_, _, seen) in watched.items():
        got = convert.figures(seen)
        report.tables[name] = convert.TableReport(got.get("rows", 0), got.get("bad", 0))
    bad = sum(t.bad for t in report.tables.values())
    if bad and not dry_run:
        convert.keep_aside(spark, side, target, found, report)
    return {"tables": tables, "bad": bad, "rejects": report.rejects, "notes": list(found.notes)}


def _one(target: DeltaTarget, name: str, changes: ChangeTable, *, dry_run: bool) -> dict[str, Any]:
    look = incoming.look(changes)
    counted = {k: look.counts[k] for k in "IUDT"}
    reached = target.progress(name) if target.exists(name) else -1
    told = {"table": name, **counted, "progress": reached, "up to": look.upto}
    if dry_run:
        return {**told, "would do": "nothing: already applied" if reached >= look.upto else "apply"}
    done = asdict(incoming.apply_one(target, changes, look))
    return told | {k: done[k] for k in ("inserted", "updated", "deleted", "missing", "plan", "version")}
