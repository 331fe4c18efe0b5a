"""Where `tailrace apply` writes: its target, and the folder of what is kept next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..apply.mapping.shared_rows import TargetPlace
from ..apply.targets.base import Target
from ..apply.targets.delta.target import DeltaTarget
from ..errors import ApplyError, ConfigError
from ..lake import delta as lake
from ..state.open_warnings import log_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse(target: str, control: str | None) -> None:
    """Raises ConfigError for a target that there is not, and for a database without a folder next to it."""
    if "://" not in target:
        return
    if not target.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "there is no target of that scheme", hint="use a folder, or postgresql://user@host:port/database"
        )
    if control is None:
        raise ConfigError(
            "a database has no place for exceptions, suspended tables and rejects",
            hint="give a folder for them: `--control FOLDER`",
        )


def kept_in(target: str, control: str | None) -> str:
    """The folder of what is kept next to a target; errors as `refuse`."""
    refuse(target, control)
    return control or target


def opened(
    spark: SparkSession,
    target: str,
    app_id: str,
    control: str | None,
    places: Callable[[str], TargetPlace] | None,
    tables: Iterable[str],
) -> tuple[Target, str, str]:
    """The target of these tables, its name, and the folder of what is kept next to it; errors as `refuse`."""
    root = kept_in(target, control)
    if "://" not in target:
        _refuse_old_names(target, (places(t).target if places else t for t in tables))
        return DeltaTarget(spark, target, app_id=app_id, places=places), target, root
    from ..apply.target_checks import progress_finding
    from ..apply.targets.postgresql import place as postgresql_place
    from ..apply.targets.postgresql import target as postgresql

    with suppress(ApplyError):  # the first batch says that it does not answer
        if one := progress_finding(target):
            log_only("progress", one.where, one.what, one.cure)
    made = postgresql.PostgresTarget(spark, target, task=app_id, places=places)
    return made, postgresql_place.Place.of(target).label, root


def _refuse_old_names(folder: str, targets: Iterable[str]) -> None:
    """Raises ApplyError for targets without a schema that have the name which earlier versions gave them:
    `.item` for `item`. New ones beside them would lack what these have."""
    for name in sorted(t for t in targets if "." not in t):
        old, new = (f"{folder.rstrip('/')}/{lake.file_name(n)}" for n in (f".{name}", name))
        if lake.exists(old):
            raise ApplyError(
                f"its target has the name that earlier versions gave to tables without a schema: {old}",
                where=name,
                hint=f"rename it, `mv {old} {new}`, and apply again",
            )
