"""The file for `tailrace apply --tables`: only the section `tables:` of a task file."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from ..errors import ConfigError
from . import yaml_lines
from .base import Settings, Text
from .table_settings import RuleSettings, TableSettings, settled
from .task import explained


class TablesFile(Settings):
    """Settings of tables, pattern -> settings, as in a task file; but a vendor's table may have no schema."""

    tables: dict[Text, TableSettings] = Field(default={})

    def table(self, name: str) -> TableSettings:
        """The effective settings of `schema.table`, or `table`."""
        return settled({}, self.tables, name)


def load(path: str | Path) -> TablesFile:
    """The settings of a file.

    Raises:
        ConfigError: it is not there, or wrong: every mistake with its line; it gives rules, as options do.
    """
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(path)) from None
    document = yaml_lines.parse(text)
    mistakes = list(document.mistakes)
    found = None
    try:
        found = TablesFile.model_validate(document.data)
    except ValidationError as error:
        mistakes += explained(error, document, TablesFile)
    if mistakes or found is None:
        lines = "\n".join(f"  {one}" for one in sorted(set(mistakes), key=lambda one: (one.line, one.what)))
        raise ConfigError(f"the file has mistakes:\n{lines}", where=str(path), hint="docs/mapping.md")
    rules = set(RuleSettings.model_fields)
    for pattern, said in found.tables.items():
        if given := sorted(rules & said.model_fields_set):
            raise ConfigError(
                f"tables.{pattern}.{given[0]} is a rule, and rules are given by options here",
                where=str(path),
                hint="use --mode, --on and --soft-delete",
            )
    return found
