"""tailrace: an open change-table engine on Spark. Public names only; nothing heavy is imported here."""

from .errors import TailraceError
from .model.change import ChangeTable, Column, Relation

__version__ = "0.1.0"
__all__ = ["ChangeTable", "Column", "Relation", "TailraceError", "__version__"]
