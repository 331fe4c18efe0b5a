"""`python -m tailrace` is the command `tailrace`."""

from .cli import main

main()
