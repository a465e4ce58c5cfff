"""The training tests need torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch (the extra torch)")
