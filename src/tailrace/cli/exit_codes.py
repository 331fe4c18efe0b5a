"""The exit codes of all commands: one table, here and in docs/exit-codes.md."""

from __future__ import annotations

FINE, FAILED, USAGE, FINDINGS, INTERRUPTED = 0, 1, 2, 3, 130

MEANINGS = {
    FINE: "Success, and nothing to report.",
    FAILED: "An error. Standard error says what, where and what to do; with `--json`, standard output is "
    '`{"error": {"kind", "what", "where", "hint"}}`.',
    USAGE: "The command line is wrong: an unknown option, a missing argument, an impossible value.",
    FINDINGS: "The command completed and has findings; the next table says which.",
    INTERRUPTED: "Ended by Ctrl-C before it was done (143: by SIGTERM).",
}

FOUND = {
    "check, init": "at least one finding is an error; `tailrace run` would refuse the task, or suspend a "
    "table",
    "validate": "a target differs from its source, or a table could not be compared",
    "validate --repair": "a target still differs, or was not compared or repaired",
    "validate --dry-run": "there is something to repair, or a table could not be compared",
    "status --max-lag": "a table lags, or a process has not run, for longer than the limit",
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

At Ctrl-C or SIGTERM, `run`, `capture` and `pipeline` finish the current commit and end with 0. They end
with 130 (143) while they are still starting, or at a second signal.

## Code {FINDINGS}

| command | when |
| --- | --- |
{found}
"""
