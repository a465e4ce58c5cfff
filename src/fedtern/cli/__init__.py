"""The command line, and the parts that commands share."""

from fedtern.cli.app import app
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
