"""Numba setup: compile kernels on their first call.

Importing Numba takes longer than importing the rest of this package, and many users of the package
never compress anything. So Numba is imported by the first call of a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

Scalar = Any
"""A number inside a kernel; Numba infers its type."""

F = TypeVar("F", bound=Callable[..., Any])


class _Kernel(Generic[F]):
    """A function that is compiled on its first call."""

    def __init__(self, build: Callable[[], F], function: F) -> None:
        self._build = build
        functools.update_wrapper(self, function)

    @functools.cached_property
    def compiled(self) -> F:
        """The Numba dispatcher, which compiles the function once for each set of argument types."""
        return self._build()

    def __call__(self, *args: Any) -> Any:
        return self.compiled(*args)


def jit(function: F) -> F:
    """Compile a function on its first call; it releases the interpreter lock.

    Numba caches the compiled code on disk.
    """

    def build() -> F:
        import numba

        # Replace the kernels that this one calls by their Numba dispatchers, under the same names.
        names = function.__globals__
        for name in function.__code__.co_names:
            if isinstance(called := names.get(name), _Kernel):
                names[name] = called.compiled
        try:
            return cast(F, numba.njit(cache=True, nogil=True)(function))
        except RuntimeError:  # no writable cache: the package is read-only and there is no home
            return cast(F, numba.njit(nogil=True)(function))

    return cast(F, _Kernel(build, function))


def _trailing_zeros(word: Scalar) -> Scalar:
    """Count the zero bits below the lowest one bit of a 64-bit word; 64 for the word 0."""


def _build_trailing_zeros() -> Callable[[Scalar], Scalar]:
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def count(_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zero_is_undefined = context.get_constant(types.boolean, False)
            return builder.cttz(args[0], zero_is_undefined)

        return types.uint64(types.uint64), generate

    return cast(Callable[[Scalar], Scalar], count)


trailing_zeros: Callable[[Scalar], Scalar] = _Kernel[Any](_build_trailing_zeros, _trailing_zeros)


def _threshold_mask(x: Scalar, y: Scalar, start: Scalar, threshold: Scalar) -> Scalar:
    """Compare the 64 magnitudes from ``x[start]`` on with a threshold.

    Unless ``y`` is None, first add its 64 values to those of ``x``, in place.

    Returns:
        A word whose bit i is 1 if the magnitude of ``x[start + i]``, read as an integer, is at
        least ``threshold``.

    """


def _build_threshold_mask() -> Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    # Written in LLVM's language: Numba vectorises the comparison, but not the collection of the
    # 64 results in one word.
    number = ir.IntType(32)
    floats = ir.VectorType(ir.FloatType(), 64)
    numbers = ir.VectorType(number, 64)
    magnitude = ir.Constant(numbers, [0x7FFFFFFF] * 64)
    undefined = ir.Constant(numbers, ir.Undefined)
    zeros = ir.Constant(numbers, [0] * 64)

    @intrinsic
    def compare(_context: Any, x: Any, y: Any, start: Any, threshold: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def pointer(kind: Any, array: Any) -> Any:
                data = context.make_array(kind)(context, builder, array).data
                return builder.bitcast(builder.gep(data, [args[2]]), floats.as_pointer())

            values = builder.load(pointer(x, args[0]), align=4)
            if not isinstance(y, types.NoneType):
                values = builder.fadd(values, builder.load(pointer(y, args[1]), align=4))
                builder.store(values, pointer(x, args[0]), align=4)
            magnitudes = builder.and_(builder.bitcast(values, numbers), magnitude)
            first = builder.insert_element(undefined, args[3], number(0))
            thresholds = builder.shuffle_vector(first, undefined, zeros)
            return builder.bitcast(
                builder.icmp_signed(">=", magnitudes, thresholds), ir.IntType(64)
            )

        arrays = (x,) if isinstance(y, types.NoneType) else (x, y)
        if any(array.dtype != types.float32 or array.layout != "C" for array in arrays):
            return None  # Numba reports that no implementation fits these arguments
        return types.uint64(x, y, types.int64, types.int32), generate

    return cast(Callable[[Scalar, Scalar, Scalar, Scalar], Scalar], compare)


threshold_mask: Callable[[Scalar, Scalar, Scalar, Scalar], Scalar] = _Kernel[Any](
    _build_threshold_mask, _threshold_mask
)
