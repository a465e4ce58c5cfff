"""Tests of training need torch, and some of them real data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="pip install 'fedtern[torch]' to run these tests")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small train slower on several threads, by far where others are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
