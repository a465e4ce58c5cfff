"""The kernels in NumPy, for machines without the compiled kernels.

Tests compare both implementations. Most functions are a few array operations. ``decode_levels``,
``sample_positions`` and the adaptive codec are loops in Python, because every step depends on the
previous one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The aliases mark these kernels of another module as kernels of this backend.
from fedtern.core.kernels.adaptive import decode_adaptive as decode_adaptive  # noqa: PLC0414
from fedtern.core.kernels.adaptive import encode_adaptive as encode_adaptive  # noqa: PLC0414

NAME = "numpy"

Integer = int | np.integer[Any]
Real = float | np.floating[Any]

_MAGNITUDE = np.int32(0x7FFFFFFF)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def select(
    x: NDArray[np.float32],
    y: NDArray[np.float32] | None,
    k: int,
    threshold: int,
    positions: NDArray[np.int64],
    values: NDArray[np.float32],
) -> int:
    """Add ``y`` to ``x`` and select the k largest of the values that reach a threshold.

    Args:
        x: the vector; it is changed unless ``y`` is None.
        y: the vector to add, or None.
        k: the largest number of values to select.
        threshold: the least magnitude, as an integer: the bits of a float without its sign.
        positions: output, the positions of the selected values, ascending.
        values: output, the selected values.

    Returns:
        The number of selected values.

    """
    if y is not None:
        with np.errstate(all="ignore"):  # values that are not finite are reported later
            x += y
    magnitudes = x.view(np.int32) & _MAGNITUDE
    found = np.flatnonzero(magnitudes >= threshold)
    if found.size > k:
        candidates = magnitudes[found]
        least = np.partition(candidates, found.size - k)[found.size - k] if k else _MAGNITUDE
        above = candidates > least
        ties = np.flatnonzero(candidates == least)[: k - int(above.sum())]
        above[ties] = True
        found = found[above] if k else found[:0]
    positions[: found.size] = found
    values[: found.size] = x[found]
    return int(found.size)


def first_reaching(x: NDArray[np.float32], threshold: int) -> int:
    """Return the position of the first magnitude that reaches a threshold; -1 if none does."""
    reaching = (x.view(np.int32) & _MAGNITUDE) >= threshold
    at = int(reaching.argmax()) if reaching.size else 0
    return at if reaching.size and reaching[at] else -1


def summarize(
    values: NDArray[np.float32], limit: int, signs: NDArray[np.bool_]
) -> tuple[int, float, float]:
    """Describe values that signs and a mean magnitude are to replace.

    Both backends add the magnitudes in the same order, that of ``np.add.reduce``, which NumPy does
    not promise to keep. If it changes, a test reports that the backends differ in the last bit of a
    float64 sum. Messages stay valid, and replicas equal: only the sender of a message computes a
    mean, and all others read it from the message.

    Args:
        values: the values.
        limit: the least magnitude that is refused, as an integer; see ``select``.
        signs: output, True for each value above zero.

    Returns:
        The position of the first refused value, the least magnitude and the sum of the magnitudes.
        Without a refused value, the position is -1; with one, the other results are unspecified.
        Without values, the least magnitude is 0.

    """
    if (refused := first_reaching(values, limit)) >= 0:
        return refused, 0.0, 0.0
    np.greater(values, 0, out=signs)
    magnitudes = np.abs(values)
    least = float(np.minimum.reduce(magnitudes)) if magnitudes.size else 0.0
    return -1, least, float(np.add.reduce(magnitudes, dtype=np.float64))


def _bits_of(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return the low ``width`` bits of each number, lowest first."""
    shifts = np.arange(width, dtype=np.int64)
    return ((numbers[:, None] >> shifts) & 1).astype(np.uint8).reshape(-1)


def _numbers_of(data: NDArray[np.uint8], width: int, count: int) -> NDArray[np.int64]:
    """Undo ``_bits_of``."""
    if not width:
        return np.zeros(count, np.int64)
    bits = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
    return bits.astype(np.int64) @ (np.int64(1) << np.arange(width, dtype=np.int64))


def encode_gaps(
    indices: NDArray[np.int64],
    width: int,
    remainders: NDArray[np.uint8],
    quotients: NDArray[np.uint8],
) -> int:
    """Write the gaps between indices as Golomb codes (Algorithm 3 of the paper).

    A gap is written as ``gap >> width`` ones and a zero in ``quotients``, and its ``width`` low
    bits in ``remainders``.

    Args:
        indices: strictly increasing positions.
        width: the number of low bits of each gap.
        remainders: output, the low bits.
        quotients: output, the unary codes.

    Returns:
        The number of bits written to ``quotients``.

    """
    gaps = np.diff(indices, prepend=-1) - 1
    if (gaps < 0).any():
        raise ValueError("positions must be strictly increasing")
    low = np.packbits(_bits_of(gaps, width), bitorder="little")
    remainders[: low.size] = low
    unary = np.ones(int((gaps >> width).sum()) + gaps.size, np.uint8)
    unary[np.cumsum((gaps >> width) + 1) - 1] = 0
    high = np.packbits(unary, bitorder="little")
    quotients[: high.size] = high
    return int(unary.size)


def decode_gaps(
    remainders: NDArray[np.uint8],
    quotients: NDArray[np.uint8],
    unary_bits: int,
    width: int,
    size: int,
    indices: NDArray[np.int64],
) -> int:
    """Read Golomb-coded gaps (Algorithm 4 of the paper).

    Args:
        remainders: the low bits, followed by at least eight spare bytes.
        quotients: the unary codes, followed by at least eight spare bytes.
        unary_bits: the number of bits available in ``quotients``.
        width: the number of low bits of each gap.
        size: every index must be below this.
        indices: output; its length is the number of gaps to read.

    Returns:
        The number of bits read from ``quotients``; -1 if the stream ends early or an index is not
        below ``size``.

    """
    if not indices.size:
        return 0
    unary = np.unpackbits(quotients, count=unary_bits, bitorder="little")
    ends = np.flatnonzero(unary == 0)[: indices.size]
    if ends.size < indices.size:
        return -1
    gaps = np.diff(ends, prepend=-1) - 1
    if (gaps > size >> width).any():
        return -1
    gaps = (gaps << width) + _numbers_of(remainders, width, indices.size)
    # Every gap is less than twice the size, so a sum of 2**31 gaps fits int64.
    np.cumsum(gaps + 1, out=indices)
    indices -= 1
    return -1 if indices[-1] >= size else int(ends[-1]) + 1


def pack_levels(levels: NDArray[np.int32], width: int, out: NDArray[np.uint8]) -> None:
    """Write non-negative levels with ``width`` bits each."""
    packed = np.packbits(_bits_of(levels.astype(np.int64), width), bitorder="little")
    out[: packed.size] = packed


def unpack_levels(data: NDArray[np.uint8], width: int, levels: NDArray[np.int32]) -> None:
    """Read the levels that ``pack_levels`` wrote."""
    levels[:] = _numbers_of(data, width, levels.size)


def _omega(value: int) -> str:
    """Return the Elias omega code of a number as a string of binary digits."""
    code = "0"
    while value > 1:
        digits = f"{value:b}"
        code = digits + code
        value = len(digits) - 1
    return code


def _codes(levels: NDArray[np.int32], sparse: int) -> str:
    parts = []
    if sparse:
        positions = np.flatnonzero(levels)
        gaps = np.diff(positions, prepend=-1)
        for gap, level in zip(gaps.tolist(), levels[positions].tolist(), strict=True):
            parts.append(_omega(gap) + ("1" if level > 0 else "0") + _omega(abs(level)))
    else:
        for level in levels.tolist():
            sign = ("1" if level > 0 else "0") if level else ""
            parts.append(_omega(abs(level) + 1) + sign)
    return "".join(parts)


def measure_levels(levels: NDArray[np.int32], sparse: int) -> int:
    """Return the number of bits that ``encode_levels`` writes."""
    return len(_codes(levels, sparse))


def encode_levels(levels: NDArray[np.int32], sparse: int, out: NDArray[np.uint8]) -> None:
    """Write levels in Elias omega code to a buffer of zeros.

    Sparse: for each non-zero level, its distance from the previous one, its sign and its magnitude.
    Dense: for every level, its magnitude plus one, and its sign unless it is zero. A sign is one
    bit, 1 for plus.
    """
    text = np.frombuffer(_codes(levels, sparse).encode(), np.uint8)
    packed = np.packbits(text & 1, bitorder="little")
    out[: packed.size] = packed


def _read_omega(bits: str, at: int, most: int) -> tuple[int, int]:
    """Read the number at bit ``at``, at most ``most``; return it, or -1, and the next bit."""
    value = 1
    while True:
        if at >= len(bits):
            return -1, at
        if bits[at] == "0":
            return value, at + 1
        if value > 62 or at + value >= len(bits):
            return -1, at
        end = at + value + 1
        value = int(bits[at:end], 2)
        at = end
        if value > most:
            return -1, at


def decode_levels(
    data: NDArray[np.uint8], sparse: int, count: int, steps: int, levels: NDArray[np.int32]
) -> int:
    """Read the levels that ``encode_levels`` wrote.

    Args:
        data: the encoded levels.
        sparse: whether ``data`` holds only the non-zero levels.
        count: the number of levels in ``data``.
        steps: the largest magnitude of a level.
        levels: output, filled with zeros.

    Returns:
        The number of bits read; -1 if the stream ends early, runs past the last level, or holds
        a level above ``steps``.

    """
    bits = (np.unpackbits(data, bitorder="little") + ord("0")).tobytes().decode()
    at = 0
    position = -1
    for _ in range(count):
        magnitude = 0
        if sparse:
            gap, at = _read_omega(bits, at, levels.size)
            if gap < 0 or position + gap >= levels.size:
                return -1
            position += gap
        else:
            position += 1
            number, at = _read_omega(bits, at, steps + 1)
            magnitude = number - 1
            if number < 0:
                return -1
            if not magnitude:
                continue
        if at >= len(bits):
            return -1
        sign = 1 if bits[at] == "1" else -1
        at += 1
        if sparse:
            magnitude, at = _read_omega(bits, at, steps)
            if magnitude < 0:
                return -1
        levels[position] = sign * magnitude
    return at


def scatter_add(
    out: NDArray[np.float32],
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    scale: Real,
) -> None:
    """Compute ``out[indices] += scale * values``, one by one in order if an index repeats."""
    np.add.at(out, indices, np.float32(scale) * values)


def scatter_signs(
    out: NDArray[np.float32],
    indices: NDArray[np.int64],
    signs: NDArray[np.bool_],
    step: Real,
) -> None:
    """Compute ``out[indices] += step`` where the sign is True, ``-= step`` where it is False."""
    np.add.at(out, indices, np.where(signs, np.float32(step), -np.float32(step)))


def apply_sign_counts(
    weights: NDArray[np.float32],
    base: NDArray[np.float32],
    counts: NDArray[np.int32],
    step: Real,
) -> None:
    """Compute ``weights = base + step * counts``, rounded once.

    A float32 step times a count below 2**29 is exact in float64. So the result is the same with
    and without fused multiply-add, and does not depend on the order in which counts were added.
    """
    weights[:] = base.astype(np.float64) + np.float64(step) * counts


def add_bits(lanes: NDArray[np.uint64], bits: NDArray[np.uint8]) -> None:
    """Count the ones in ``bits``: byte j of lane i counts bit j of byte i, up to 255."""
    lanes.view(np.uint8)[_lane_order(lanes.size)] += np.unpackbits(bits, bitorder="little")


def add_lanes(counts: NDArray[np.int32], lanes: NDArray[np.uint64]) -> None:
    """Add the counts of ``add_bits`` to ``counts`` and reset the lanes to zero."""
    counts += lanes.view(np.uint8)[_lane_order(lanes.size)][: counts.size]
    lanes[:] = 0


def _lane_order(lanes: int) -> NDArray[np.int64] | slice:
    """Return the indices of the bytes of lanes, lowest byte first on every machine."""
    if np.little_endian:
        return slice(None)
    return np.arange(8 * lanes).reshape(-1, 8)[:, ::-1].reshape(-1)


def _split_mix(seed: Integer, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the outputs of SplitMix64 with the given numbers, counted from 0."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (numbers + np.uint64(1)) * _STEP
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def sample_positions(seed: Integer, size: int, positions: NDArray[np.int64]) -> None:
    """Fill ``positions`` with a random subset of ``range(size)``, ascending.

    Position i is taken with probability (positions still to take) / (size - i), which makes every
    subset equally likely.
    """
    numbers = _split_mix(seed, np.arange(size, dtype=np.uint64)) >> np.uint64(11)
    uniforms = (numbers.astype(np.float64) * 2.0**-53).tolist()
    count = positions.size
    taken: list[int] = []
    for i, uniform in enumerate(uniforms):
        if len(taken) == count:
            break
        if uniform * (size - i) < count - len(taken):
            taken.append(i)
    positions[:] = taken


def random_signs(seed: Integer, first: int, signs: NDArray[np.float32]) -> None:
    """Fill ``signs`` with 1 and -1: the top bits of the seed's numbers from ``first`` on."""
    numbers = np.arange(first, first + signs.size, dtype=np.int64).astype(np.uint64)
    signs[:] = np.where(_split_mix(seed, numbers) >> np.uint64(63), 1.0, -1.0)


def rotate(x: NDArray[np.float32]) -> None:
    """Multiply by the normalised Hadamard matrix, in position; the transform is its own inverse.

    The length of ``x`` must be a power of two.
    """
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        first = pairs[:, 0] + pairs[:, 1]
        pairs[:, 1] = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] = first
        half *= 2
    x *= np.float32(1.0 / np.sqrt(np.float64(x.size)))


def sort_entries(
    indices: NDArray[np.int64],
    values: NDArray[np.float32],
    ends: NDArray[np.int64],
    size: int,
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    sorted_values: NDArray[np.float32],
) -> None:
    """Sort the entries of several updates by position, and those of one position by update.

    Args:
        indices: the positions of all entries, update by update.
        values: the values of all entries, update by update.
        ends: one past the last entry of each update.
        size: all positions are below this.
        positions: output, the position of each entry.
        update_indices: output, the index of each entry's update.
        sorted_values: output, the value of each entry.

    """
    order = np.argsort(indices, kind="stable")
    update_of = np.repeat(np.arange(ends.size, dtype=np.int32), np.diff(ends, prepend=0))
    positions[:] = indices[order]
    update_indices[:] = update_of[order]
    sorted_values[:] = values[order]


def count_distinct(positions: NDArray[np.int64]) -> int:
    """Count the distinct values of an ascending array."""
    return int(_starts(positions).sum())


def _starts(positions: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each position differs from the previous one."""
    starts: NDArray[np.bool_] = np.diff(positions, prepend=-1) != 0
    return starts


def _cells(
    positions: NDArray[np.int64], update_indices: NDArray[np.int32], num_updates: int
) -> NDArray[np.int64]:
    return (np.cumsum(_starts(positions)) - 1) * num_updates + update_indices


def measure_keys(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    num_updates: int,
    key_width: int,
    position_width: int,
    cell_width: int,
) -> tuple[int, int, int]:
    """Measure both ways to write the keys of entries as Golomb codes.

    Returns:
        The bits of the quotients of the keys; and for nested keys, of the distinct positions and
        of the cells (see ``nest_keys``).

    """

    def quotient_bits(keys: NDArray[np.int64], width: int) -> int:
        return int(((np.diff(keys, prepend=-1) - 1) >> width).sum()) + keys.size

    distinct_positions = positions[_starts(positions)]
    return (
        quotient_bits(positions * num_updates + update_indices, key_width),
        quotient_bits(distinct_positions, position_width),
        quotient_bits(_cells(positions, update_indices, num_updates), cell_width),
    )


def nest_keys(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    num_updates: int,
    distinct: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> None:
    """Split the keys of entries into distinct positions and cells.

    A cell is an index into a table with one row per distinct position and one column per update.

    Args:
        positions: the position of each entry, ascending.
        update_indices: the index of each entry's update.
        num_updates: the number of updates.
        distinct: output, the distinct positions.
        cells: output, the cell of each entry.

    """
    distinct_positions = positions[_starts(positions)]
    distinct[: distinct_positions.size] = distinct_positions
    cells[:] = _cells(positions, update_indices, num_updates)


def split_keys(
    keys: NDArray[np.int64],
    num_updates: int,
    rows: NDArray[np.int64],
    update_indices: NDArray[np.int32],
) -> int:
    """Compute ``rows = keys // num_updates`` and ``update_indices = keys % num_updates``.

    Returns:
        The number of distinct rows.

    """
    rows[:], remainder = np.divmod(keys, num_updates)
    update_indices[:] = remainder
    return count_distinct(rows)


def fill_ternary_values(
    positions: NDArray[np.int64],
    update_indices: NDArray[np.int32],
    signs: NDArray[np.uint8],
    mus: NDArray[np.float32],
    ends: NDArray[np.int64],
    values: NDArray[np.float32],
) -> bool:
    """Fill ``values`` with plus or minus the magnitude of each entry's update and segment.

    Args:
        positions: the position of each entry, ascending.
        update_indices: the index of each entry's update.
        signs: one bit per entry, eight per byte, lowest first; 1 for plus.
        mus: magnitudes by update and segment.
        ends: one past the last position of each segment.
        values: output, the value of each entry.

    Returns:
        False if a magnitude is negative, is zero although it has entries, or is positive although
        it has none.

    """
    segments = np.searchsorted(ends, positions, side="right")
    positive = np.unpackbits(signs, count=positions.size, bitorder="little").astype(np.bool_)
    magnitudes = mus[update_indices, segments]
    values[:] = np.where(positive, magnitudes, -magnitudes)
    used = np.zeros(mus.shape, np.bool_)
    used[update_indices, segments] = True
    return bool((mus >= 0).all() and np.array_equal(mus > 0, used))
