"""One self-contained HTML page from one or many run directories.

>>> from fedtern.report import write_report
>>> write_report([], "report.html")
Traceback (most recent call last):
...
fedtern.core.errors.RunError: a report needs at least one run directory
"""

from fedtern.report.page import write_report
from fedtern.runs import RecordedRun, load_run

__all__ = ["RecordedRun", "load_run", "write_report"]
