"""The compiled kernels and those in NumPy give the same results, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import random_vector
from fedtern.core.kernels import reference

native = pytest.importorskip("fedtern.core.kernels.native", reason="no compiled kernels")

BACKENDS = (native, reference)
SPARE = bytes(8)  # kernels may read this many bytes after a bit stream
seeds = st.integers(0, 2**32)


def same_result(call) -> object:
    """Call both implementations; return their common result."""
    results = [call(backend) for backend in BACKENDS]
    assert results[0] == results[1]
    return results[0]


def damaged(data: bytes, rng: np.random.Generator) -> np.ndarray:
    """Return the data and spare bytes, often with one byte changed."""
    changed = np.frombuffer(data + SPARE, np.uint8).copy()
    if data and rng.random() < 0.6:
        changed[rng.integers(len(data))] ^= np.uint8(rng.integers(256))
    return changed


@given(seeds, st.integers(0, 500), st.integers(0, 510))
def test_both_backends_select_the_same_values(seed, size, k):
    rng = np.random.default_rng(seed)
    x = random_vector(rng, size)
    if size and seed % 7 == 0:
        x[rng.integers(size)] = rng.choice([np.nan, np.inf, -np.inf, 3e38])
    y = random_vector(rng, size) if seed % 2 else None
    threshold = int(rng.integers(1, 2**30)) if seed % 3 else 1

    def select(backend):
        changed = x.copy()
        room = min(4 * k + 1024, size) + 64
        positions = np.empty(room, np.int64)
        values = np.empty(room, np.float32)
        count = backend.select(changed, y, k, threshold, positions, values)
        return positions[:count].tobytes(), values[:count].tobytes(), changed.tobytes()

    same_result(select)
    same_result(lambda backend: backend.first_reaching(x, threshold))


def summary(backend, values, limit=2**31 - 1):
    signs = np.zeros(values.size, np.bool_)
    refused, least, total = backend.summarize(values, limit, signs)
    return refused if refused >= 0 else (least.hex(), total.hex(), signs.tobytes())


# NumPy sums 8 and 128 values at a time, and converts 8192.
@given(seeds, st.one_of(st.integers(0, 70_000), st.sampled_from([7, 8, 127, 128, 129, 8192, 8193])))
@settings(max_examples=200)
def test_magnitudes_are_summed_in_the_order_of_numpy(seed, size):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size, np.float32)
    # Magnitudes from subnormal numbers to 2**100: most orders give different sums.
    values *= np.exp2(rng.integers(-149, 97, size, endpoint=True) >> (seed % 4)).astype(np.float32)
    values[rng.random(size) < 0.1] = 0
    _, total, signs = same_result(lambda backend: summary(backend, values))
    assert total == float(np.add.reduce(np.abs(values), dtype=np.float64)).hex()
    assert signs == (values > 0).tobytes()


@given(seeds, st.integers(0, 500), st.integers(1, 2**31 - 1))
def test_both_backends_refuse_the_same_values(seed, size, limit):
    rng = np.random.default_rng(seed)
    values = random_vector(rng, size)
    if size and seed % 3 == 0:
        values[rng.integers(size)] = rng.choice([np.nan, -np.inf, 3e38])
    refused = reference.first_reaching(values, limit)
    result = same_result(lambda backend: summary(backend, values, limit))
    assert result == refused if refused >= 0 else isinstance(result, tuple)


@given(seeds, st.integers(1, 5000), st.integers(0, 14))
def test_both_backends_encode_and_decode_the_same_gaps(seed, size, width):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, min(size, 300) + 1))
    positions = np.sort(rng.choice(size, count, replace=False)).astype(np.int64)
    last = int(positions[-1]) if count else 0

    def encode(backend):
        low = np.zeros((count * width + 7) // 8, np.uint8)
        high = np.zeros(((last >> width) + count + 7) // 8, np.uint8)
        bits = backend.encode_gaps(positions, width, low, high)
        return bits, low.tobytes(), high.tobytes()

    _, low, high = same_result(encode)
    remainders = damaged(low, rng)
    quotients = damaged(high, rng)

    def decode(backend):
        found = np.empty(count, np.int64)
        bits = 8 * len(high)
        used = backend.decode_gaps(remainders, quotients, bits, width, size, found)
        return used, found.tobytes() if used >= 0 else b""

    same_result(decode)


@given(seeds, st.integers(0, 300), st.integers(1, 32))
def test_both_backends_pack_the_same_levels(seed, count, width):
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, min(2**width, 2**31), count).astype(np.int32)

    def pack(backend):
        out = np.zeros((count * width + 7) // 8, np.uint8)
        backend.pack_levels(levels, width, out)
        return out.tobytes()

    data = np.frombuffer(same_result(pack) + SPARE, np.uint8)

    def unpack(backend):
        out = np.empty(count, np.int32)
        backend.unpack_levels(data, width, out)
        return out.tobytes()

    assert same_result(unpack) == levels.tobytes()


@given(seeds, st.integers(0, 200), st.sampled_from([0, 1]))
def test_both_backends_encode_and_decode_the_same_levels(seed, count, sparse):
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(1, 2000))
    levels = rng.integers(-steps, steps + 1, count) * (rng.random(count) < rng.random())
    levels = levels.astype(np.int32)
    bits = same_result(lambda backend: backend.measure_levels(levels, sparse))

    def encode(backend):
        out = np.zeros((bits + 7) // 8, np.uint8)
        backend.encode_levels(levels, sparse, out)
        return out.tobytes()

    data = damaged(same_result(encode), rng)[:-8]
    numbers = int(np.count_nonzero(levels)) if sparse else count

    def decode(backend):
        out = np.zeros(count, np.int32)
        used = backend.decode_levels(data, sparse, numbers, steps, out)
        return used, out.tobytes() if used >= 0 else b""

    same_result(decode)


@given(seeds, st.integers(1, 300), st.integers(0, 300))
def test_both_backends_add_updates_and_count_bits_alike(seed, size, count):
    rng = np.random.default_rng(seed)
    x = random_vector(rng, size)
    positions = rng.integers(0, size, count)
    values = random_vector(rng, count)
    scale = np.float32(rng.standard_normal())
    counts = rng.integers(-1000, 1000, size).astype(np.int32)
    bits = rng.integers(0, 256, (size + 7) // 8).astype(np.uint8)

    def run(backend):
        added = x.copy()
        signed = x.copy()
        weights = x.copy()
        backend.scatter_add(added, positions, values, scale)
        backend.scatter_signs(signed, positions, values > 0, scale)
        backend.apply_sign_counts(weights, x, counts, np.float64(np.float32(0.0002)))
        lanes = np.zeros(bits.size, np.uint64)
        votes = counts.copy()
        for _ in range(3):
            backend.add_bits(lanes, bits)
        backend.add_lanes(votes, lanes)
        assert not lanes.any()
        return [vector.tobytes() for vector in (added, signed, weights, votes)]

    same_result(run)


@given(st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 8))
def test_both_backends_sample_and_rotate_alike(seed, size, exponent):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, size + 1))
    x = random_vector(rng, 2**exponent)

    def run(backend):
        positions = np.empty(count, np.int64)
        signs = np.empty(size, np.float32)
        rotated = x.copy()
        backend.sample_positions(np.uint64(seed), size, positions)
        backend.random_signs(np.uint64(seed), 17, signs)
        backend.rotate(rotated)
        return positions.tobytes(), signs.tobytes(), rotated.tobytes()

    same_result(run)


@settings(max_examples=200)
@given(seeds, st.integers(1, 4000), st.integers(1, 6), st.integers(1, 4))
def test_both_backends_merge_sparse_updates_alike(seed, size, updates, segments):
    rng = np.random.default_rng(seed)
    most = min(size, 40)
    parts = [
        np.sort(rng.choice(size, int(rng.integers(0, most + 1)), replace=False))
        for _ in range(updates)
    ]
    indices = np.concatenate(parts).astype(np.int64)
    values = random_vector(rng, indices.size)
    ends = np.cumsum([part.size for part in parts]).astype(np.int64)
    tensor_ends = np.sort(rng.integers(0, size + 1, segments)).astype(np.int64)
    tensor_ends[-1] = size
    magnitudes = (rng.random((updates, segments)) * (seed % 3 > 0)).astype(np.float32)
    signs = rng.integers(0, 256, (indices.size + 7) // 8).astype(np.uint8)

    def run(backend):
        positions = np.empty(indices.size, np.int64)
        owners = np.empty(indices.size, np.int32)
        ordered = np.empty(indices.size, np.float32)
        backend.sort_entries(indices, values, ends, size, positions, owners, ordered)
        distinct = np.empty(backend.count_distinct(positions), np.int64)
        cells = np.empty(indices.size, np.int64)
        backend.nest_keys(positions, owners, updates, distinct, cells)
        rows = np.empty(indices.size, np.int64)
        remainders = np.empty(indices.size, np.int32)
        found = backend.split_keys(positions * updates + owners, updates, rows, remainders)
        assert np.array_equal(rows, positions)
        assert np.array_equal(remainders, owners)
        filled = np.empty(indices.size, np.float32)
        valid = backend.fill_ternary_values(
            positions, owners, signs, magnitudes, tensor_ends, filled
        )
        arrays = (positions, owners, ordered, distinct, cells, filled)
        bits = backend.measure_keys(positions, owners, updates, 3, 4, 1)
        return bits, found, valid, [array.tobytes() for array in arrays]

    same_result(run)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.first_reaching(np.zeros(3), 1), "expected items of 4 bytes, got 8"),
        (lambda m: m.first_reaching(np.zeros(3, np.float32), 0), "threshold must be at least 1"),
        (
            lambda m: m.scatter_add(
                np.zeros(3, np.float32), np.array([3]), np.ones(1, np.float32), 1.0
            ),
            "a position is out of range",
        ),
        (
            lambda m: m.unpack_levels(np.zeros(1, np.uint8), 8, np.zeros(1, np.int32)),
            "data is too short",
        ),
        (lambda m: m.rotate(np.zeros(3, np.float32)), "power of two"),
        (
            lambda m: m.measure_keys(np.zeros(1, np.int64), np.zeros(1, np.int32), 1, 3, 99, 3),
            r"widths must be in \[0, 48\]",
        ),
    ],
)
def test_compiled_kernels_check_their_buffers(call, message):
    with pytest.raises(ValueError, match=message):
        call(native)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions", [[900, 5], [3, 3], [-1]])
def test_positions_that_are_not_ascending_are_refused(backend, positions):
    low = np.zeros(8, np.uint8)
    high = np.zeros(200, np.uint8)
    with pytest.raises(ValueError, match="positions must be strictly increasing"):
        backend.encode_gaps(np.array(positions), 3, low, high)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_are_selected_from_a_read_only_vector(backend):
    x = np.arange(100, dtype=np.float32)
    x.flags.writeable = False
    positions = np.empty(200, np.int64)
    values = np.empty(200, np.float32)
    assert backend.select(x, None, 2, 1, positions, values) == 2
    assert positions[:2].tolist() == [98, 99]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sorting_no_entries_works(backend):
    nothing = np.empty(0, np.int64)
    backend.sort_entries(
        nothing,
        np.empty(0, np.float32),
        np.zeros(1, np.int64),
        0,
        nothing.copy(),
        np.empty(0, np.int32),
        np.empty(0, np.float32),
    )


@pytest.mark.parametrize("name", ["native", "numpy"])
def test_an_environment_variable_chooses_the_kernels(name):
    probe = "from fedtern.core.kernels import describe_kernels; print(describe_kernels())"
    environment = {**os.environ, "FEDTERN_KERNELS": name}
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(name)


@pytest.mark.parametrize(
    "options", [["-c", "from fedtern import compress"], ["-m", "fedtern", "--version"]]
)
def test_an_unknown_backend_is_reported_by_name(options):
    environment = {**os.environ, "FEDTERN_KERNELS": "numba"}
    command = [sys.executable, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FEDTERN_KERNELS must be native or numpy, got 'numba'" in done.stderr
    assert ("Traceback" in done.stderr) == ("-c" in options)


def random_tensors(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return ends and rows of up to four tensors: vectors, matrices, narrow and empty ones."""
    ends = [0]
    rows = []
    for _ in range(int(rng.integers(0, 5))):
        shapes = [
            (1, int(rng.integers(0, 300))),
            (int(rng.integers(1, 40)), int(rng.integers(1, 60))),
            (int(rng.integers(0, 3)), int(rng.integers(0, 400))),
            (int(rng.integers(1, 300)), int(rng.integers(1, 5))),
        ]
        height, width = shapes[rng.integers(4)]
        ends.append(ends[-1] + height * width)
        rows.append(height)
    return np.array(ends[1:], np.int64), np.array(rows, np.int64)


@settings(max_examples=200)
@given(seeds)
def test_both_backends_code_the_same_positions_adaptively(seed):
    rng = np.random.default_rng(seed)
    ends, rows = random_tensors(rng)
    size = int(ends[-1]) if ends.size else 0
    count = int(rng.binomial(size, rng.choice([0.001, 0.02, 0.3, 1.0])))
    weights = rng.gamma(0.3, 1, size) + 1e-9
    chances = weights / weights.sum() if size and seed % 2 else None
    positions = np.sort(rng.choice(size, count, replace=False, p=chances)) if count else []
    positions = np.array(positions, np.int64)
    largest = int(rng.choice([1, 2, 5, 40, 100_000]))
    magnitudes = rng.geometric(0.5, count) * np.where(rng.random(count) < 0.05, 1000, 1)
    magnitudes = np.minimum(magnitudes, largest).astype(np.int32)

    def encode(backend):
        out = np.zeros(20 * count + 64, np.uint8)
        length = backend.encode_adaptive(positions, magnitudes, largest, ends, rows, out)
        assert backend.encode_adaptive(positions, magnitudes, largest, ends, rows, out[:0]) == (
            -1 if length else 0
        )
        return out[:length].tobytes()

    stream = same_result(encode)
    changed = damaged(stream, rng)[: len(stream)]
    for data in (np.frombuffer(stream, np.uint8), changed, changed[: rng.integers(20)].copy()):

        def decode(backend, data=data):
            found = np.zeros(count, np.int64)
            found_magnitudes = np.zeros(count, np.int32)
            length = backend.decode_adaptive(data, found, found_magnitudes, largest, ends, rows)
            if length < 0:
                return None
            return found.tobytes(), found_magnitudes.tobytes() if largest > 1 else b""

        result = same_result(decode)
        if data.tobytes() == stream:
            expected = magnitudes.tobytes() if largest > 1 else b""
            assert result == (positions.tobytes(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("positions", "magnitudes", "ends", "rows", "message"),
    [
        ([3, 1], [1, 1], [9], [3], "positions must be strictly increasing"),
        ([9], [1], [9], [3], "positions must be strictly increasing"),
        ([1], [3], [9], [3], "magnitudes in range"),
        ([1], [0], [9], [3], "magnitudes in range"),
        ([1], [1], [9], [2], "ends and rows are not those of tensors"),
        ([1], [1], [9, 5], [3, 1], "ends and rows are not those of tensors"),
    ],
)
def test_invalid_entries_are_not_coded_adaptively(
    backend, positions, magnitudes, ends, rows, message
):
    out = np.zeros(100, np.uint8)
    arrays = (np.array(positions, np.int64), np.array(magnitudes, np.int32))
    tensors = (np.array(ends, np.int64), np.array(rows, np.int64))
    with pytest.raises(ValueError, match=message):
        backend.encode_adaptive(*arrays, 2, *tensors, out)
