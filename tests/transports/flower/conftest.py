from __future__ import annotations

import sys
from pathlib import Path

import pytest

collect_ignore = [
    "bowl",
    "direct.py",
    "patterns.py",
]  # an app that Flower runs, and helpers of the tests

sys.path.append(str(Path(__file__).parents[3] / "examples" / "flower"))


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable telemetry and downloads, and keep state out of the user's home."""
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "0")
    for name in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
