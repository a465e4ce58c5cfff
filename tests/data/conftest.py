"""Real datasets, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory FEDTERN_DATA names; without one, a test on real data is skipped."""
    root = os.environ.get("FEDTERN_DATA")
    if not root:
        pytest.skip("set FEDTERN_DATA to a directory with the real datasets to run this test")
    return Path(root)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who has set nothing."""
    monkeypatch.delenv("FEDTERN_DATA", raising=False)
