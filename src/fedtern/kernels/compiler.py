"""The one place where Numba is set up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic

Scalar = Any
"""A number inside a kernel: its width is Numba's to infer."""

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first call, without the interpreter lock, and keep the result on disk."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to keep it: a read-only package and no home
        return cast(F, numba.njit(nogil=True)(function))


@intrinsic
def _trailing_zeros(_context: Any, word: Any) -> Any:
    """Count the zero bits below the lowest one of a 64-bit word; 64 for the word 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero_is_defined = context.get_constant(numba.types.boolean, False)
        return builder.cttz(args[0], zero_is_defined)

    return numba.types.uint64(numba.types.uint64), generate


trailing_zeros: Callable[[Scalar], Scalar] = cast(Any, _trailing_zeros)
