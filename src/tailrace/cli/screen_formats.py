"""Vendor tables on the terminal: formats, conversions, applied and inspected tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.markup import escape
from rich.table import Table

from .output import out
from .screen_fit import Col, Fit

if TYPE_CHECKING:
    from ..formats.inspect import Found
    from ..formats.report import ConversionReport


def show_conversion(report: ConversionReport, would: str) -> None:
    """Prints the rows, bad rows and losses of each table; `would` precedes the verb of a dry run."""
    rows = []
    for name, table in sorted(report.tables.items()):
        lost = ", ".join(f"{k} {n:,}" for k, n in table.lost.items()) or "nothing"
        rows.append({"table": name, "rows": f"{table.rows:,}", "bad": f"{table.bad:,}", "lost": lost})
    out.print(grid(rows))
    for name, count in sorted(report.written.items()):
        out.print(f"{count:>12,} rows {would} written to {escape(name)}")
    for note in report.notes:
        out.print(f"[yellow]note[/] {escape(note)}")
    if bad := sum(t.bad for t in report.tables.values()):
        show_bad(bad, report.rejects)
    if report.pending:
        out.print(f"waiting rows: {escape(report.pending)}")


def show_bad(many: int, rejects: str | None) -> None:
    """Prints where bad rows are, with their reasons; `rejects` is None if nothing was written."""
    if rejects:
        out.print(f"[red]bad rows[/] with their reasons: {escape(rejects)}")
    else:
        out.print(f"[red]bad rows[/]: {many:,} would be set aside with their reasons")


def show_found(found: Found) -> None:
    """Prints the result of `tailrace inspect`."""
    out.print(f"[bold]{found.format}[/] ({found.sure:.0%} sure)")
    several = len(set(found.vendors.values())) > 1
    for name, columns in found.vendor_tables.items():
        whose = f" ({found.vendors.get(name) or 'unknown'})" if several else ""
        out.print(f"  {escape(name)}{whose}: {escape(', '.join(columns))}")
    for name in sorted(found.vendors.keys() - found.vendor_tables.keys()):
        out.print(f"  {escape(name)} ({found.vendors[name] or 'unknown'}): not read as {found.format}")
    for table in found.tables:
        key = ", ".join(table.key) or "none"
        counts = ", ".join(f"{k} {n:,}" for k, n in sorted(table.operations.items()))
        out.print(f"\n[bold]{escape(table.name)}[/]  key: {escape(key)}  changes: {escape(counts) or 'none'}")
        rows = sum(table.operations.values())
        filled = [h if n == rows else f"{h} ({n:,})" for h, n in table.headers.items()]
        out.print(f"  headers with values (rows, unless all): {escape(', '.join(filled))}")
        out.print(f"  columns: {escape(', '.join(f'{c} {t}' for c, t in table.columns.items()))}")
        if table.rows:
            out.print(grid(table.rows))
        for why, count in table.odd.items():
            out.print(f"  [red]odd[/] {count:,} x {escape(why)}")
    for name, first in found.control_tables.items():
        out.print(f"\n[bold]{escape(name)}[/]  has no changes")
        out.print(grid(first))
    for note in found.notes:
        out.print(f"[yellow]note[/] {escape(note)}")


def grid(rows: list[dict[str, Any]]) -> Fit:
    """A table of rows; its columns are those of the first row."""
    made = Fit([Col(name, fold=True) for name in (rows[0] if rows else ["row"])])
    for row in rows:
        made.add(*(_cell(v) for v in row.values()))
    return made


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def applied(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The tables of `incoming.run`.

    >>> in_words({"I": 3, "U": 0, "D": 1, "T": 0}), in_words({})
    ('I 3, D 1', '')
    """
    has_rules = any("actions" in row for row in rows)
    more = ["did", "conflicts", "flagged"] if has_rules else ["plan"]
    made = Table("table", "changes", "up to", "inserted, updated, deleted", *more)
    for column in made.columns:
        column.overflow = "fold"  # nothing is truncated
    for row in rows:
        changes = in_words({k: row.get(k, 0) for k in "IUDT"})
        outcome = [
            in_words(row.get("actions", {})),
            in_words(row.get("conflicts", {})),
            f"{row.get('flagged', 0):,}",
        ]
        counts = ", ".join(f"{row.get(n, 0):,}" for n in ("inserted", "updated", "deleted"))
        cells = [row["table"], changes, str(row.get("up to", "")), counts]
        made.add_row(*map(escape, [*cells, *(outcome if has_rules else [str(row.get("plan", ""))])]))
    return made


def in_words(counts: Mapping[str, int]) -> str:
    """Counts by name, without zeros."""
    return ", ".join(f"{name} {many:,}" for name, many in counts.items() if many)


def remarks(done: Mapping[str, Any]) -> list[str]:
    """One line for each suspended table, then for each note."""
    whys = [(row["table"], str(row["suspended"])) for row in done["tables"] if row.get("suspended")]
    # A dry run shows where the batch would end.
    held = [f"{t}: {why}" if why.startswith("would ") else f"{t} is suspended: {why}" for t, why in whys]
    return [*held, *(f"note: {note}" for note in done["notes"])]


class _Folded(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for made in super().__rich_console__(console, options):
            if isinstance(made, Table):
                for column in made.columns:
                    column.overflow = "fold"
            yield made


class Page(Markdown):
    """Markdown that is complete on a narrow terminal."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "table_open": _Folded}
