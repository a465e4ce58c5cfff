"""Write one self-contained HTML page about one or many runs.

>>> from fedtern.report import write_report
>>> write_report([], "report.html")
Traceback (most recent call last):
...
fedtern.core.errors.RunError: No run directories given; a report needs at least one
"""

from fedtern.report.formatting import (
    format_bytes,
    format_fraction,
    format_iterations,
    format_number,
    format_percent,
    format_value,
    join_words,
    method_label,
)
from fedtern.report.page import write_report
from fedtern.report.styles import Style, style
from fedtern.runs import RecordedRun, load_run

__all__ = [
    "RecordedRun",
    "Style",
    "format_bytes",
    "format_fraction",
    "format_iterations",
    "format_number",
    "format_percent",
    "format_value",
    "join_words",
    "load_run",
    "method_label",
    "style",
    "write_report",
]
