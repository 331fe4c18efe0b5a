"""The exit codes of all commands: one table, here and in docs/exit-codes.md."""

from __future__ import annotations

FINE, FAILED, USAGE, FINDINGS, INTERRUPTED = 0, 1, 2, 3, 130

MEANINGS = {
    FINE: "Success, and nothing to report.",
    FAILED: "An error. Standard error says what, where and what to do; with `--json`, standard output is "
    '`{"error": {"kind", "what", "where", "hint"}}`.',
    USAGE: "The command line is wrong: an unknown option, a missing argument, an impossible value.",
    FINDINGS: "The command completed, and there is something to look at; the next table says what.",
    INTERRUPTED: "Ended by Ctrl-C before it was done (143: by SIGTERM).",
}

FOUND = {
    "check, init": "at least one finding is an error; `tailrace run` would refuse the task, or suspend a "
    "table",
    "validate": "a target differs from its source, or a table could not be compared",
    "validate --repair": "a target still differs, or was not compared or repaired",
    "validate --dry-run": "there is something to repair, or a table could not be compared",
    "status --fail-if-behind": "a table is further behind, or a process has not run, for longer than "
    "the limit",
    "convert": "bad rows were set aside in `_rejects`",
    "apply": "bad rows were set aside in `_rejects`, or a table is suspended",
    "demo": "a target differs from its source",
}
"""Command -> when it ends with `FINDINGS`."""


def markdown() -> str:
    """The page `docs/exit-codes.md`."""
    codes = "\n".join(f"| {code} | {words} |" for code, words in MEANINGS.items())
    found = "\n".join(f"| `{command}` | {words} |" for command, words in FOUND.items())
    return f"""# Exit codes

Written from `tailrace.cli.exit_codes`; they are the same for every command.

| code | meaning |
| --- | --- |
{codes}

`run`, `capture` and `pipeline` finish the commit they are at when Ctrl-C or SIGTERM comes, and end with 0;
with 130 (143) while they are still starting, or at the second signal.

## Code {FINDINGS}

| command | when |
| --- | --- |
{found}
"""
