from pathlib import Path

from . import errors as errors
from . import pipelines as pipelines
from .engine.history_updates import HistoryRules as HistoryRules
from .errors import TailraceError as TailraceError
from .library.change_tables import apply as apply
from .library.change_tables import columns_changed as columns_changed
from .library.change_tables import convert as convert
from .library.change_tables import inspect as inspect
from .library.change_tables import read as read
from .library.open_task import OpenTask as OpenTask
from .library.task_table import TaskTable as TaskTable
from .model.change import ChangeTable as ChangeTable
from .model.change import Column as Column
from .model.change import Relation as Relation
from .query.history.flow import HistoryFlow as HistoryFlow
from .query.history.table import HistoryTable as HistoryTable
from .query.result import Result as Result
from .query.table_changes import TableChanges as TableChanges
from .query.watch import watching as watching

__version__: str

def open(path: str | Path) -> OpenTask: ...
