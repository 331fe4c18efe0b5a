"""Help of the commands: no types where a name says them, and groups in a fixed order."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

PANELS = ("Run", "Watch", "Tables", "Query", "Vendor tables")
"""Headings of the groups of commands, in the order of the help."""


class Command(TyperCommand):
    """A command with plain help."""

    def get_params(self, ctx: Any) -> Any:
        """Its parameters, without types of flags and arguments."""
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands with plain help."""

    def get_params(self, ctx: Any) -> Any:
        """Its parameters, without types of flags and arguments."""
        return _plain(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> Any:
        """The names of its commands by panel; groups come after single commands."""
        return sorted(super().list_commands(ctx), key=self._rank)

    def _rank(self, name: str) -> tuple[int, bool]:
        command = self.commands[name]
        panel = getattr(command, "rich_help_panel", None)
        return PANELS.index(panel) if panel in PANELS else -1, isinstance(command, TyperGroup)


def _plain(params: Any) -> Any:
    for one in params:
        if one.param_type_name == "argument":
            one.display_type_rich = _no_type  # typer has no setting for this
        elif one.is_flag:
            one.metavar = ""
    return params


def _no_type(ctx: Any) -> None:
    """Replaces the method that names the type of an argument."""
