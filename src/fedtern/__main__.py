"""The ``fedtern`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from fedtern.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'fedtern[cli]'")
    except KeyboardInterrupt:  # before there is anything to save
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
