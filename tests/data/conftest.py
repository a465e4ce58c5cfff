"""What tests of data share."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who has set nothing."""
    monkeypatch.delenv("FEDTERN_DATA", raising=False)
