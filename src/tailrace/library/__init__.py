"""The Python interface of `tailrace`: tasks, change tables, and the commands as functions."""
