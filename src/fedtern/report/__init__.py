"""Write one self-contained HTML page about one or many runs.

>>> from fedtern.report import write_report
>>> write_report([], "report.html")
Traceback (most recent call last):
...
fedtern.core.errors.RunError: No run directories given; a report needs at least one
"""

from fedtern.report.page import write_report
from fedtern.runs import RecordedRun, load_run

__all__ = ["RecordedRun", "load_run", "write_report"]
