"""The command line, and the parts that commands share."""

from typing import TYPE_CHECKING

from fedtern.cli.app import app
from fedtern.core.lazy import import_on_first_use

if TYPE_CHECKING:
    from fedtern.cli.options import (
        AsJson,
        DataDir,
        Out,
        checkpoint_seconds,
        command_line,
        fraction_option,
        parse_numbers,
    )
    from fedtern.cli.progress import summary
    from fedtern.cli.signals import interruptible
    from fedtern.cli.terminal import console, report_errors

# The application alone suffices for `fedtern --version` and `--help`.
_MODULES = {
    "AsJson": "fedtern.cli.options",
    "DataDir": "fedtern.cli.options",
    "Out": "fedtern.cli.options",
    "checkpoint_seconds": "fedtern.cli.options",
    "command_line": "fedtern.cli.options",
    "console": "fedtern.cli.terminal",
    "fraction_option": "fedtern.cli.options",
    "interruptible": "fedtern.cli.signals",
    "parse_numbers": "fedtern.cli.options",
    "report_errors": "fedtern.cli.terminal",
    "summary": "fedtern.cli.progress",
}
__getattr__ = import_on_first_use(__name__, _MODULES)

__all__ = [
    "AsJson",
    "DataDir",
    "Out",
    "app",
    "checkpoint_seconds",
    "command_line",
    "console",
    "fraction_option",
    "interruptible",
    "parse_numbers",
    "report_errors",
    "summary",
]
