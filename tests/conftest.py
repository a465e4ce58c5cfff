"""Options and fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# No deadline per example, because first calls are slower than later ones.
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
    """The directory in FEDTERN_DATA; tests that need it are skipped if it is not set."""
    root = os.environ.get("FEDTERN_DATA")
    if not root:
        pytest.skip("set FEDTERN_DATA to a directory with the real datasets to run this test")
    return Path(root)
