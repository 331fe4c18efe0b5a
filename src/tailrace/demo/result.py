"""The result of the demo."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .load import ShopLoad
from .questions import Answer
from .story import StoryEvent


@dataclass(frozen=True)
class TableLine:
    """The result for one table: rows on both sides, whether the checksums were equal, changes stored (I, U,
    D, T) and their rate from the first write to the last apply."""

    table: str
    source_rows: int
    target_rows: int
    equal: bool
    changes: int
    changes_per_second: float
    differs: str | None = None


@dataclass
class DemoResult:
    """The result, for the screen and `--json`. Seconds are counted from the demo's start. `spark`: by kind of
    step, the jobs and tasks that Spark ran, and the changes and rows handled by them and by the driver."""

    folder: str
    task_file: str
    target: str
    changes: str
    tables: list[TableLine] = field(default_factory=list)
    position: str = ""
    load: ShopLoad | None = None
    drained_in: float = 0.0
    seconds: float = 0.0
    steps: list[tuple[float, str]] = field(default_factory=list)
    life: list[StoryEvent] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    plot: str = ""
    spark: dict[str, dict[str, int]] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every target was equal to its table."""
        return bool(self.tables) and all(t.equal for t in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Returns the result for `--json`."""
        return {"equal": self.equal} | asdict(self)
