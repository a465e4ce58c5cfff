"""Fixtures of the training tests, which need torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fedtern[torch]'")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one torch thread: small models are slower with several, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
