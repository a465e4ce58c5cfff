"""The command line, and the parts that commands share."""

from fedtern.cli.app import app
from fedtern.cli.errors import report_errors
from fedtern.cli.numbers import parse_numbers, rate
from fedtern.cli.options import AsJson, DataDir, Out
from fedtern.cli.progress import summary
from fedtern.cli.signals import checkpoint_seconds, command_line, interruptible
from fedtern.cli.terminal import console

__all__ = [
    "AsJson",
    "DataDir",
    "Out",
    "app",
    "checkpoint_seconds",
    "command_line",
    "console",
    "interruptible",
    "parse_numbers",
    "rate",
    "report_errors",
    "summary",
]
