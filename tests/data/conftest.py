"""Fixtures of the data tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the environment variable with the data directory."""
    monkeypatch.delenv("FEDTERN_DATA", raising=False)
