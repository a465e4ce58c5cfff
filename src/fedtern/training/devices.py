"""Devices and threads of torch."""

from __future__ import annotations

import torch


def check_device(device: torch.device | str) -> torch.device:
    """Return a device that can be used.

    Raises:
        ValueError: torch does not know the device, or this machine does not have it.

    >>> check_device("gpu")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: Unknown device 'gpu'; use "cpu", "cuda", "cuda:1" or "mps".
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f'Unknown device {device!r}; use "cpu", "cuda", "cuda:1" or "mps".'
        ) from None
    try:
        torch.empty(1, device=found).add_(1).item()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f'device {str(found)!r} cannot be used: {reason}; leave device out, or use "cpu"'
        ) from None
    return found
