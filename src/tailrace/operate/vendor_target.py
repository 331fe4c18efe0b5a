"""The target of `tailrace apply`, and its control folder: exceptions, suspended tables and rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..targets.base import Target
from ..targets.delta.target import DeltaTarget
from ..targets.multi_source import TargetLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_target(target: str, control: str | None) -> None:
    """Raises ConfigError for an address that is no target, and for a database without a control folder."""
    if "://" not in target:
        return
    if not target.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "there is no target of that scheme", hint="use a folder, or postgresql://user@host:port/database"
        )
    if control is None:
        raise ConfigError(
            "a database cannot hold exceptions, suspended tables and rejects",
            hint="give a folder for them: `--control FOLDER`",
        )


def control_folder(target: str, control: str | None) -> str:
    """Returns the control folder of a target, by default the target itself; errors as `refuse_target`."""
    refuse_target(target, control)
    return control or target


def open_target(
    spark: SparkSession,
    target: str,
    app_id: str,
    control: str | None,
    places: Callable[[str], TargetLocation] | None,
) -> tuple[Target, str, str]:
    """Opens a target. Returns it, its name and its control folder; errors as `refuse_target`."""
    root = control_folder(target, control)
    if "://" not in target:
        return DeltaTarget(spark, target, app_id=app_id, locations=places), target, root
    from ..targets.postgresql.connection import Database
    from ..targets.postgresql.target import PostgresTarget

    made = PostgresTarget(spark, target, task=app_id, locations=places)
    return made, Database.of(target).label, root
