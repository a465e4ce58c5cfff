from typing import Any

import numpy as np
from numpy.typing import NDArray

version: str

def instruction_set() -> str: ...
def select_largest(
    x: NDArray[np.float32],
    y: NDArray[np.float32] | None,
    k: int,
    threshold: int,
    positions: NDArray[np.int64],
    values: NDArray[np.float32],
) -> int: ...
def summarize(
    values: NDArray[np.float32], limit: int, signs: NDArray[np.bool_]
) -> tuple[int, float, float]: ...
def __getattr__(name: str) -> Any: ...
