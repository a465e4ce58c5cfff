from __future__ import annotations

import pytest

from fedtern.report import write_report
from report.fake_runs import write_all


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def page(runs, tmp_path_factory):
    return write_report(runs, tmp_path_factory.mktemp("page") / "report.html")
