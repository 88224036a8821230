"""`python -m crosshead`, and the command `crosshead`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C counts from the first import on."""
    try:
        from crosshead.harness.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
