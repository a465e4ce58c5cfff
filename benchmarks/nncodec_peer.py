"""Compress an array of -1, 0 and 1 with DeepCABAC.

Reads the array as bytes from standard input. Prints three numbers: the bytes of the shortest
stream, and the median seconds to encode and to decode it. Runs in the Python that has nncodec, so
it does not import fedtern.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
from nncodec import tensor  # pip install nncodec

WIDTHS = (0, 128, 1152)  # row lengths to try, as empty rows are skipped; 0 for a flat array
REPEATS = 3


def shaped(values: Any, width: int) -> Any:
    if not width:
        return values
    return np.pad(values, (0, -values.size % width)).reshape(-1, width)


def main() -> None:
    values = np.frombuffer(sys.stdin.buffer.read(), np.int8).astype(np.int32)
    best: tuple[int, float, float] | None = None
    with tempfile.TemporaryDirectory() as directory:
        options = {"results": directory, "use_dq": False}
        for width in WIDTHS:
            array = shaped(values, width)
            times = []
            for _ in range(REPEATS):
                with contextlib.redirect_stdout(io.StringIO()):
                    begin = time.perf_counter()
                    stream = tensor.encode(array, options)
                    middle = time.perf_counter()
                    back = tensor.decode(stream)
                    times.append((middle - begin, time.perf_counter() - middle))
                if not np.array_equal(np.asarray(back), array):
                    sys.exit(f"rows of {width}: the decoded array differs from the input")
            encode, decode = (statistics.median(column) for column in zip(*times, strict=True))
            if best is None or len(stream) < best[0]:
                best = len(stream), encode, decode
    assert best is not None
    print(*best)


if __name__ == "__main__":
    main()
