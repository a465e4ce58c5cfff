"""``benchmarks/kernels.py``: stages with both implementations of the kernels."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture
def kernels(monkeypatch):
    if find_spec("fedtern.core.kernels.compiled") is None:
        pytest.skip("the compiled kernels are not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import kernels

    yield kernels
    for name in ("kernels", "rows"):
        sys.modules.pop(name, None)


def test_every_stage_is_measured_with_both_implementations(kernels):
    assert [version.name for version in kernels.OURS] == ["native", "numpy"]
    found = kernels.measure(kernels.OURS, 2000, 1)
    assert {"np.add", "stc: compress", "signsgd: apply", "qsgd: decode"} <= set(found)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
    # Elias codes are read in Python where no compiled kernels are.
    native, numpy = found["qsgd: decode"]
    assert numpy > 5 * native


def test_a_worker_that_fails_is_reported(kernels):
    broken = kernels.Version("broken", sys.executable, {"FEDTERN_KERNELS": "nonsense"})
    with pytest.raises(RuntimeError, match="a worker ended with code 1"):
        kernels.Worker(broken, 10)
