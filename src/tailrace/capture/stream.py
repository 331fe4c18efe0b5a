"""The stream in one run of capture: made, read, given up; `state.streams` keeps what holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config.task import Task
from ..errors import ConnectionLostError, SourceError
from ..lake import log
from ..sources.base import LogSource
from ..state import streams
from ..state.streams import ANEW, MADE, MAKING, UNMADE


class Streams:
    """The stream in one run of capture."""

    def __init__(self, task: Task) -> None:
        self._task, self.now = task, streams.newest(task)

    @property
    def anew(self) -> bool:
        """Whether an operator has given up the stream, and nothing was done about it."""
        return self.now.state == ANEW

    def clear(self, source: LogSource) -> None:
        """Takes away what the source keeps of a stream that was given up, or not made to its end."""
        if self.now.state in (ANEW, MAKING):
            source.renew()

    def prepare(self, source: LogSource, tables: Sequence[str]) -> bool:
        """`source.prepare`; a stream is made only after that was recorded, and read only after it is, too."""
        if self.now.state == MADE:
            fresh = source.prepare(tables, begin=False)
            if not self.now.number:
                found = {**source.identity(), **self.now.identity}
                if "begin" not in self.now.identity and log.state(self._task.log_path).position is not None:
                    found.pop("begin", None)  # LOG knows where it goes on
                self._say(replace(self.now, identity=found))
            return fresh
        before = replace(self.now, stream=max(self.now.stream, 1))
        self._say(replace(before, state=MAKING))
        try:
            fresh = source.prepare(tables)
        except ConnectionLostError:
            raise  # nobody knows whether it was made
        except SourceError:
            self._say(replace(before, state=UNMADE if before.stream == 1 else ANEW))
            raise
        self._say(replace(before, state=MADE, identity=dict(source.identity())))
        return fresh

    def _say(self, now: streams.StreamRecord) -> None:
        self.now = streams.write(self._task, replace(now, number=self.now.number))
