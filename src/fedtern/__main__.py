"""The ``fedtern`` command."""

from __future__ import annotations

import sys

from fedtern.core.errors import KernelsError
from fedtern.core.extras import install_command
from fedtern.core.version import describe_version


def main() -> None:
    """Run the command line; if it cannot start, print the reason in one line."""
    try:
        _run()
    except KernelsError as error:  # any import of the core can raise it
        sys.exit(f"fedtern: {error}")


def _run() -> None:
    if sys.argv[1:] == ["--version"]:  # quick, and without the dependencies
        print(describe_version())
        return
    try:
        from fedtern.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"the command line needs {error.name}: {install_command('cli')}")
    except KeyboardInterrupt:  # during the imports, so that there is nothing to save
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
