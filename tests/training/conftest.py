"""Tests of training need torch, and some of them real data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install 'fedtern[torch]' to run these tests")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small train slower on several threads, by far where others are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """The directory FEDTERN_DATA names; without one, a test on real data is skipped."""
    root = os.environ.get("FEDTERN_DATA")
    if not root:
        pytest.skip("set FEDTERN_DATA to a directory with the real datasets to run this test")
    return Path(root)
