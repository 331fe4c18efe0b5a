"""`python -m tailrace` is the command `tailrace`."""

from .cli.signals import end_on_interrupt


def main() -> None:
    """Runs the command line."""
    end_on_interrupt()  # before the rest is loaded
    from .cli import main as cli

    cli.main()


if __name__ == "__main__":
    main()
