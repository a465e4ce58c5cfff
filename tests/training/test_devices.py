"""Devices that cannot be used are errors with the reason."""

from __future__ import annotations

import pytest
import torch

from fedtern.training.devices import check_device


def test_the_cpu_can_always_be_used():
    assert check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", 'Unknown device \'gpu\'; use "cpu", "cuda"'),
        (None, "Unknown device None"),
        ("cuda:77", "device 'cuda:77' cannot be used: .*; leave device out"),
        ("meta", "device 'meta' cannot be used"),
    ],
)
def test_a_device_that_cannot_be_used_is_named(device, message):
    with pytest.raises(ValueError, match=message):
        check_device(device)
