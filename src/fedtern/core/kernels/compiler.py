"""The one place where Numba is set up.

Importing Numba takes longer than everything else in this package together, and not everybody who
imports the package goes on to compress something: it is imported with the first call of a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

Scalar = Any
"""A number inside a kernel: its width is Numba's to infer."""

F = TypeVar("F", bound=Callable[..., Any])


class _Kernel(Generic[F]):
    """A function that is compiled when it is first called."""

    def __init__(self, build: Callable[[], F], function: F) -> None:
        self._build = build
        functools.update_wrapper(self, function)

    @functools.cached_property
    def compiled(self) -> F:
        """The function, known to Numba; compiled for each kind of argument as they come."""
        return self._build()

    def __call__(self, *args: Any) -> Any:
        return self.compiled(*args)


def jit(function: F) -> F:
    """Compile on first call, without the interpreter lock, and keep the result on disk."""

    def build() -> F:
        import numba

        # Kernels that this one calls must be known to Numba as well, under the same names.
        names = function.__globals__
        for name in function.__code__.co_names:
            if isinstance(called := names.get(name), _Kernel):
                names[name] = called.compiled
        try:
            return cast(F, numba.njit(cache=True, nogil=True)(function))
        except RuntimeError:  # nowhere to keep it: a read-only package and no home
            return cast(F, numba.njit(nogil=True)(function))

    return cast(F, _Kernel(build, function))


def _count_trailing_zeros(word: Scalar) -> Scalar:
    """Count the zero bits below the lowest one of a 64-bit word; 64 for the word 0."""


def _trailing_zeros() -> Callable[[Scalar], Scalar]:
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def count(_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zero_is_defined = context.get_constant(types.boolean, False)
            return builder.cttz(args[0], zero_is_defined)

        return types.uint64(types.uint64), generate

    return cast(Callable[[Scalar], Scalar], count)


trailing_zeros: Callable[[Scalar], Scalar] = _Kernel[Any](_trailing_zeros, _count_trailing_zeros)


def _find_reaching(x: Scalar, y: Scalar, start: Scalar, threshold: Scalar) -> Scalar:
    """Bit i of the word: the magnitude of ``x[start + i]`` is spelled by ``threshold`` or more.

    Unless ``y`` is None, it is added to these 64 values of ``x`` first.
    """


def _reaching() -> Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    # Left to itself, the compiler vectorises the comparison but not the collection of its bits.
    number = ir.IntType(32)
    floats, numbers = ir.VectorType(ir.FloatType(), 64), ir.VectorType(number, 64)
    magnitude = ir.Constant(numbers, [0x7FFFFFFF] * 64)
    nothing, zeros = ir.Constant(numbers, ir.Undefined), ir.Constant(numbers, [0] * 64)

    @intrinsic
    def reach(_context: Any, x: Any, y: Any, start: Any, threshold: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def place(kind: Any, array: Any) -> Any:
                data = context.make_array(kind)(context, builder, array).data
                return builder.bitcast(builder.gep(data, [args[2]]), floats.as_pointer())

            values = builder.load(place(x, args[0]), align=4)
            if not isinstance(y, types.NoneType):
                values = builder.fadd(values, builder.load(place(y, args[1]), align=4))
                builder.store(values, place(x, args[0]), align=4)
            spelled = builder.and_(builder.bitcast(values, numbers), magnitude)
            first = builder.insert_element(nothing, args[3], number(0))
            wanted = builder.shuffle_vector(first, nothing, zeros)
            return builder.bitcast(builder.icmp_signed(">=", spelled, wanted), ir.IntType(64))

        arrays = (x,) if isinstance(y, types.NoneType) else (x, y)
        if any(array.dtype != types.float32 or array.layout != "C" for array in arrays):
            return None  # which Numba reports as a call that it has no code for
        return types.uint64(x, y, types.int64, types.int32), generate

    return cast(Callable[[Scalar, Scalar, Scalar, Scalar], Scalar], reach)


reaching: Callable[[Scalar, Scalar, Scalar, Scalar], Scalar] = _Kernel[Any](
    _reaching, _find_reaching
)
