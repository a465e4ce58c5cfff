from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# First calls are slower than later ones: no single example may be blamed for taking long.
settings.register_profile("fedtern", deadline=None, print_blob=True)
settings.load_profile("fedtern")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["np"] = np


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory FEDTERN_DATA names; without one, a test on real data is skipped."""
    root = os.environ.get("FEDTERN_DATA")
    if not root:
        pytest.skip("set FEDTERN_DATA to a directory with the real datasets to run this test")
    return Path(root)
