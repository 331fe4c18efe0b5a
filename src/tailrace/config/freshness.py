"""Settings for the freshness of targets, and its cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .base import Settings
from .quantities import SomeSeconds


def _share(value: Any) -> Any:
    """A share, which may be written in percent.

    >>> _share("25%"), _share(0.5), _share("soon")
    (0.25, 0.5, 'soon')
    """
    text = str(value).strip()
    if text.endswith("%") and text[:-1].strip().replace(".", "", 1).isdigit():
        return float(text[:-1]) / 100
    return value


Freshness = Literal["auto"] | SomeSeconds
"""`auto`, or a duration (seconds)."""
Share = Annotated[float, BeforeValidator(_share), Field(gt=0)]


class CostSettings(Settings):
    """Limits for all processes of the task together under `freshness: auto`. The interval between batches
    grows up to 15 seconds until they use no more. A backlog is applied at full speed."""

    cpu: Share = Field(default=0.25, json_schema_extra={"shown": "`25%`"})
    """Processor time, as a share of one core."""
    files: float = Field(default=10.0, gt=0)
    """Files written a second."""
    write: float = Field(default=20.0, gt=0)
    """Bytes written to targets, as a multiple of the bytes of the changes; at least 1 MB a second."""
