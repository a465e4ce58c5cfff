"""The adaptive codec of positions and small integers, in Python.

``native/adaptive.c`` has the same functions; ``docs/format.md`` defines the bytes. Every step
depends on the previous ones, so that these are loops over binary decisions, a hundred times slower
than the compiled ones. Encoding and decoding are one traversal: ``_Coder.code`` writes a given bit
or reads one, and everything else is the same.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import MutableSequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_LEAST = 32  # probabilities are of 65,536; neither bit is ever considered impossible
_MOST = 65536 - _LEAST
_HALF = 32768
_SLOWEST = 30
_RATES = [65536 // (seen + 2) for seen in range(_SLOWEST + 1)]

_ROW_CLASSES = 12
_ROW_UNARY = 16
_SPLIT_CLASSES = 8
_UNIFORM = 15
_BINOMIAL = 16  # counts below it are split by a binomial distribution
_WIDEST = 16  # levels of the tree of columns
_COUNT_UNIT = 64
_MAGNITUDE_UNARY = 16
_LONGEST = 31  # bits of a number after the first


class _InvalidStream(Exception):
    """The stream is not one of the expected positions."""


class _Bit:
    """The probability of a 1, which adapts to the bits seen."""

    __slots__ = ("one", "seen")

    def __init__(self) -> None:
        self.one = _HALF
        self.seen = 0


class _Bits(dict[int, _Bit]):
    """Models of several bits, each made when it is first used.

    So a short message takes little memory, although the models of all bits would take 50 kB.
    """

    def __missing__(self, number: int) -> _Bit:
        self[number] = bit = _Bit()
        return bit


class _Number:
    """Models of a number: of each bit of its length in unary, and of the bit after the first."""

    __slots__ = ("length", "second")

    def __init__(self) -> None:
        self.length = _Bits()
        self.second = _Bits()


class _Coder:
    """A range coder. It decodes ``data``, or encodes if ``data`` is None."""

    def __init__(self, data: bytes | None) -> None:
        self.decoding = data is not None
        self.data = b"" if data is None else data
        self.at = 0
        self.low = 0
        self.range = 0xFFFFFFFF
        self.value = 0
        self.out = bytearray()
        self._pending = 0  # bytes of 255 that a carry could still change
        self._cache = -1  # the byte before them; -1 before the first byte
        for _ in range(4 if self.decoding else 0):
            self.value = self.value << 8 | self._next_byte()

    def _next_byte(self) -> int:
        # The encoder omits zeros at the end.
        byte = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return byte

    def _shift_low(self) -> None:
        """Move the top byte of ``low`` to the output."""
        if self.low < 0xFF000000 or self.low > 0xFFFFFFFF:
            carry = self.low >> 32
            if self._cache >= 0:
                self.out.append((self._cache + carry) & 0xFF)
            self.out += bytes([(0xFF + carry) & 0xFF]) * self._pending
            self._pending = 0
            self._cache = self.low >> 24 & 0xFF
        else:
            self._pending += 1
        self.low = (self.low & 0x00FFFFFF) << 8

    def code(self, bit: int, one: int) -> int:
        """Code a bit that is 1 with a probability of one / 65,536."""
        bound = (self.range >> 16) * one
        if self.decoding:
            bit = int(self.value < bound)
        if bit:
            self.range = bound
        else:
            self.range -= bound
            if self.decoding:
                self.value -= bound
            else:
                self.low += bound
        while self.range < 1 << 24:
            self.range <<= 8
            if self.decoding:
                self.value = self.value << 8 | self._next_byte()
            else:
                self._shift_low()
        return bit

    def adaptive(self, model: _Bit, bit: int) -> int:
        """Code a bit with the probability of a model, which then adapts."""
        bit = self.code(bit, model.one)
        rate = _RATES[model.seen]
        if bit:
            model.one += (65536 - model.one) * rate >> 16
        else:
            model.one -= model.one * rate >> 16
        model.one = min(max(model.one, _LEAST), _MOST)
        model.seen = min(model.seen + 1, _SLOWEST)
        return bit

    def number(self, model: _Number, number: int) -> int:
        """Code number + 1, below 2**31, in Elias's gamma code with adaptive bits."""
        value = number + 1
        length = 0
        while self.adaptive(self._length_model(model, length), int(value >> length > 1)):
            length += 1
        read = 1
        for i in range(length - 1, -1, -1):
            bit = value >> i & 1
            if i == length - 1:
                bit = self.adaptive(model.second[length], bit)
            else:
                bit = self.code(bit, _HALF)
            read = read << 1 | bit
        return read - 1

    def _length_model(self, model: _Number, length: int) -> _Bit:
        if length == _LONGEST:
            raise _InvalidStream
        return model.length[length]

    def finish(self) -> bytes:
        """End the stream; return it if this coder encodes."""
        if self.decoding:
            if self.at < len(self.data) or self.data[-1:] == b"\0":
                raise _InvalidStream
            return b""
        # Of all numbers in [low, low + range), take the one with the most zeros at its end.
        last = self.low + self.range - 1
        bits = next(b for b in range(32, -1, -1) if last >> b << b >= self.low)
        self.low = last >> bits << bits
        for _ in range(5):
            self._shift_low()
        return bytes(self.out).rstrip(b"\0")


class _Positions:
    """Codes positions: ``entries`` are given to an encoder, and collected by a decoder."""

    def __init__(self, coder: _Coder, entries: MutableSequence[int]) -> None:
        self.coder = coder
        self.entries = entries
        self.done = 0
        self.tensor_counts = _Number()
        self.learning = _Bits()
        self.rows = [_Bits() for _ in range(_ROW_CLASSES)]
        self.long_rows = _Number()
        self.split_differs = _Bits()
        self.split_distance = [_Number() for _ in range(_SPLIT_CLASSES)]
        # Of the current tensor.
        self.columns = 0
        self.levels = 0
        self.prior = 1
        self.counts: list[int] | None = None
        self.start = 0

    def _count_below(self, position: int, most: int) -> int:
        """Return how many of the next entries are below a position, for an encoder."""
        count = 0
        if not self.coder.decoding:
            while count < most and self.entries[self.done + count] < position:
                count += 1
        return count

    def code_all(self, count: int, ends: list[int], rows: list[int]) -> None:
        """Code ``count`` positions of a model."""
        first = 0
        for tensor, (end, tensor_rows) in enumerate(zip(ends, rows, strict=True)):
            left = count - self.done
            if not left:
                break
            here = left
            if tensor < len(ends) - 1:
                here = self.coder.number(self.tensor_counts, self._count_below(end, left))
            if here > min(left, end - first):
                raise _InvalidStream
            if here:
                self._code_tensor(first, end, tensor_rows, here)
            first = end
        if self.done < count:
            raise _InvalidStream

    def _code_tensor(self, first: int, end: int, rows: int, count: int) -> None:
        size = end - first
        columns = size // rows if rows else 0
        is_matrix = rows > 1 and 1 < columns <= 1 << _WIDEST
        if not is_matrix:
            # A vector becomes a matrix with about one entry per row.
            level = 0
            while level < _WIDEST and count << level < size:
                level += 1
            columns = 1 << level
            rows = -(-size // columns)
        learning = _UNIFORM
        if is_matrix:
            learning = self._code_learning(self._choose_learning(first, columns, count))
        self.columns = columns
        self.levels = (columns - 1).bit_length()
        self.counts = None if learning == _UNIFORM else [0] * (2 << self.levels)
        self.prior = 1 if learning == _UNIFORM else 2 << learning
        left = count
        row = 0
        while left:
            self.start = first + row * columns
            if not is_matrix:
                self.columns = min(columns, end - self.start)  # the last row may be shorter
            here = left
            if row < rows - 1:
                below = self._count_below(self.start + columns, left)
                here = self._code_row(left, rows - row, below)
            if here > self.columns:
                raise _InvalidStream
            if here:
                self._code_columns(0, 1, 0, here)
            left -= here
            row += 1

    def _choose_learning(self, first: int, columns: int, count: int) -> int:
        """Choose how strongly to learn: by the pairs of entries that share a column."""
        if self.coder.decoding:
            return 0
        entries = np.array(self.entries[self.done : self.done + count])
        shared = np.bincount((entries - first) % columns)
        same = float((shared * (shared - 1)).sum())
        pairs = float(count) * float(count - 1)
        excess = columns * same - pairs
        if excess <= 0:
            return _UNIFORM
        if pairs <= same:
            return 0
        learning = math.frexp((pairs - same) / excess)[1] + 4
        return _UNIFORM if learning > 14 else max(learning, 0)

    def _code_learning(self, learning: int) -> int:
        node = 1
        for i in range(3, -1, -1):
            node = node << 1 | self.coder.adaptive(self.learning[node - 1], learning >> i & 1)
        return node - 16

    def _code_row(self, left: int, rows: int, count: int) -> int:
        """Code how many entries a row has, given how many are left for how many rows."""
        models = self.rows[min((left * 64 // rows).bit_length() // 2, _ROW_CLASSES - 1)]
        most = min(left, self.columns)
        found = 0
        while found < min(most, _ROW_UNARY):
            if not self.coder.adaptive(models[found], int(count > found)):
                return found
            found += 1
        if found < most:
            found += self.coder.number(self.long_rows, max(count - _ROW_UNARY, 0))
        if found > most:
            raise _InvalidStream
        return found

    def _code_columns(self, level: int, node: int, first: int, count: int) -> None:
        """Code the columns of the entries in a node of the tree, whose first column is given."""
        while level < self.levels:
            span = 1 << (self.levels - level - 1)
            left_size = min(max(self.columns - first, 0), span)
            right_size = min(max(self.columns - first - span, 0), span)
            fewest = max(count - right_size, 0)
            most = min(count, left_size)
            in_left = fewest
            if fewest < most:
                below = self._count_below(self.start + first + span, count)
                in_left = self._code_split(node, left_size, right_size, count, below)
                if not fewest <= in_left <= most:
                    raise _InvalidStream
            if self.counts is not None:
                self.counts[2 * node] += in_left
                self.counts[2 * node + 1] += count - in_left
            level += 1
            node *= 2
            if in_left == count:
                continue
            if in_left:
                self._code_columns(level, node, first, in_left)
            node += 1
            first += span
            count -= in_left
        if self.coder.decoding:
            self.entries.append(self.start + first)
        self.done += 1

    def _code_split(
        self, node: int, left_size: int, right_size: int, count: int, in_left: int
    ) -> int:
        """Code how many of a node's entries are in its left half."""
        left = left_size * self.prior
        both = left + right_size * self.prior
        if self.counts is not None:
            left += self.counts[2 * node] * _COUNT_UNIT
            both += (self.counts[2 * node] + self.counts[2 * node + 1]) * _COUNT_UNIT
        excess = max(both.bit_length() - 16, 0)
        probability = min(max(((left >> excess) << 16) // (both >> excess), _LEAST), _MOST)
        if count == 1:
            return self.coder.code(in_left, probability)
        if count < _BINOMIAL:
            return self._code_binomial(count, probability, in_left)
        return self._code_many(count, probability, in_left)

    def _code_binomial(self, count: int, left: int, in_left: int) -> int:
        # Count on the less likely side, which takes fewer decisions.
        mirrored = left > _HALF
        hit = 65536 - left if mirrored else left
        miss = 65536 - hit
        wanted = count - in_left if mirrored else in_left
        mass = rest = 1 << 30  # all outcomes together
        for _ in range(count):
            mass = mass * miss >> 16
        outcome = 0
        while outcome < count:
            here = (mass << 16) // rest if rest else _HALF
            if self.coder.code(int(outcome == wanted), min(max(here, _LEAST), _MOST)):
                break
            rest = max(rest - mass, 0)
            mass = mass * (count - outcome) * hit // ((outcome + 1) * miss)
            outcome += 1
        return count - outcome if mirrored else outcome

    def _code_many(self, count: int, left: int, in_left: int) -> int:
        """Code the distance from the expected number."""
        split_class = min(count.bit_length() - 5, _SPLIT_CLASSES - 1)
        expected = (count * left + _HALF) >> 16
        distance = in_left - expected
        if not self.coder.adaptive(self.split_differs[split_class], int(distance != 0)):
            return expected
        more = self.coder.code(int(distance > 0), _HALF)
        number = max(abs(distance) - 1, 0)
        size = 1 + self.coder.number(self.split_distance[split_class], number)
        return expected + size if more else expected - size


def _code_magnitudes(
    coder: _Coder, magnitudes: MutableSequence[int], count: int, largest: int
) -> None:
    more = _Bits()
    large = _Number()
    for i in range(count):
        above = 0
        wanted = 0 if coder.decoding else magnitudes[i] - 1
        while above < min(largest - 1, _MAGNITUDE_UNARY):
            if not coder.adaptive(more[above], int(wanted > above)):
                break
            above += 1
        else:
            if above < largest - 1:
                above += coder.number(large, max(wanted - above, 0))
            if above > largest - 1:
                raise _InvalidStream
        if coder.decoding:
            magnitudes.append(above + 1)


def encode_adaptive(
    positions: NDArray[np.int64],
    magnitudes: NDArray[np.int32],
    largest: int,
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:
    """Write positions and small integers as adaptive binary decisions.

    Args:
        positions: strictly increasing positions.
        magnitudes: a number from 1 to ``largest`` for each position; unused if that is 1.
        largest: the largest magnitude.
        ends: one past the last position of each tensor.
        rows: the length of each tensor's first axis, or 1 for a vector.
        out: output, the stream.

    Returns:
        The length of the stream; -1 if ``out`` is too short for it.

    Raises:
        ValueError: the positions are not increasing or not below the last end, a magnitude is out
            of range, or the tensors do not have whole rows.

    """
    _check_layout(ends, rows)
    size = int(ends[-1]) if ends.size else 0
    is_ascending = bool((np.diff(positions, prepend=-1) > 0).all())
    if not is_ascending or (positions.size and positions[-1] >= size):
        raise ValueError("positions must be strictly increasing and magnitudes in range")
    if largest > 1 and (
        magnitudes.size != positions.size or not ((magnitudes > 0) & (magnitudes <= largest)).all()
    ):
        raise ValueError("positions must be strictly increasing and magnitudes in range")
    coder = _Coder(None)
    coding = _Positions(coder, positions.tolist())
    coding.code_all(positions.size, ends.tolist(), rows.tolist())
    if largest > 1:
        _code_magnitudes(coder, magnitudes.tolist(), positions.size, largest)
    stream = coder.finish()
    if len(stream) > out.size:
        return -1
    out[: len(stream)] = np.frombuffer(stream, np.uint8)
    return len(stream)


def decode_adaptive(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    magnitudes: NDArray[np.int32],
    largest: int,
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> int:
    """Read positions and small integers.

    Args:
        data: the whole stream.
        positions: output, as many positions as it has room for.
        magnitudes: output, their magnitudes; unused if ``largest`` is 1.
        largest: the largest magnitude.
        ends: one past the last position of each tensor.
        rows: the length of each tensor's first axis, or 1 for a vector.

    Returns:
        The length of the stream; -1 if it is not one of these positions.

    """
    _check_layout(ends, rows)
    coder = _Coder(data.tobytes())
    # Arrays, because a list of integers takes five times as much memory.
    coding = _Positions(coder, array("q"))
    found = array("q")
    try:
        coding.code_all(positions.size, ends.tolist(), rows.tolist())
        if largest > 1:
            _code_magnitudes(coder, found, positions.size, largest)
        coder.finish()
    except _InvalidStream:
        return -1
    positions[:] = coding.entries
    if largest > 1:
        magnitudes[:] = found
    return data.size


def _check_layout(ends: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    sizes = [end - start for start, end in pairwise([0, *ends.tolist()])]
    is_valid = ends.size == rows.size and all(
        size >= 0 and (size % count == 0 if count > 0 else size == count == 0)
        for size, count in zip(sizes, rows.tolist(), strict=True)
    )
    if not is_valid:
        raise ValueError("ends and rows are not those of tensors")
