from __future__ import annotations

import pytest

from fuzz.decoders import fuzz


def test_decoders_raise_decode_errors_only(capsys):
    fuzz(1500, seed=1, report=print)


@pytest.mark.slow
def test_decoders_raise_decode_errors_only_at_length(capsys):
    fuzz(40_000, seed=2, report=print)
