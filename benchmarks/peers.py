"""Our codec compared with general and neural compressors, on one ternary update of VGG11*.

Each compressor gets two inputs: the gaps between non-zeros with their signs, and the dense array of
-1, 0 and 1. Times include the conversion from an update to that input and back.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtern.core.codecs import TernaryCodec
from fedtern.core.layout import Layout
from fedtern.core.updates import Ternary
from rows import VGG11S, Options, P, Row, Rows, random_ternary, take_turns

MU = np.array([0.01], np.float32)
Pack = Callable[[bytes], bytes]
PYTHON = "NNCODEC_PYTHON"
NNCODEC = "DeepCABAC (nncodec)"


def gaps(update: Ternary) -> bytes:
    """Gaps as the narrowest integers that hold all of them, then signs as bits."""
    between = np.diff(update.indices, prepend=-1) - 1
    wide = np.uint16 if between.max() < 1 << 16 else np.uint32
    return between.astype(wide).tobytes() + np.packbits(update.signs).tobytes()


def from_gaps(data: bytes, count: int) -> Ternary:
    width = (len(data) - (count + 7) // 8) // count
    between = np.frombuffer(data, f"<u{width}", count).astype(np.int64)
    signs = np.unpackbits(np.frombuffer(data, np.uint8, offset=width * count), count=count)
    return Ternary(VGG11S, np.cumsum(between + 1) - 1, signs.view(np.bool_), MU)


def dense(update: Ternary) -> bytes:
    """Values -1, 0 and 1, one byte each."""
    out = np.zeros(update.size, np.int8)
    out[update.indices] = np.where(update.signs, 1, -1)
    return out.tobytes()


def from_dense(data: bytes, count: int) -> Ternary:
    values = np.frombuffer(data, np.int8)
    indices = np.flatnonzero(values)
    return Ternary(VGG11S, indices, values[indices] > 0, MU)


FORMS = {"gaps": (gaps, from_gaps), "dense array": (dense, from_dense)}


def general() -> dict[str, tuple[Pack, Pack] | None]:
    """Compressors of bytes by name; None if not installed."""
    found: dict[str, tuple[Pack, Pack] | None] = {
        "zlib 6": (lambda data: zlib.compress(data, 6), zlib.decompress),
        "zlib 9": (lambda data: zlib.compress(data, 9), zlib.decompress),
    }
    if find_spec("zstandard") is None:
        return {**found, "zstd": None}
    zstandard = importlib.import_module("zstandard")
    for level in (3, 19):
        squeeze = zstandard.ZstdCompressor(level=level)
        back = zstandard.ZstdDecompressor()
        found[f"zstd {level}"] = (squeeze.compress, back.decompress)
    return found


def rows(options: Options) -> Rows:
    update = random_ternary(VGG11S, P, np.random.default_rng(0))
    codec = TernaryCodec()
    layout = Layout.flat(VGG11S)
    repeats = 3 if options.quick else 31
    ours = codec.encode(update, layout)
    for name, pack in general().items():
        if pack is None:
            yield Row(name, name, note="not installed: pip install zstandard")
            continue
        for form in FORMS:
            yield from _against(name, pack, form, update, repeats)
    seconds = take_turns({"": lambda: codec.encode(update, layout)}, repeats)[""]
    yield from _nncodec(update, ours, seconds)


def _against(name: str, pack: tuple[Pack, Pack], form: str, update: Ternary, repeats: int) -> Rows:
    """Compare size and times with one compressor on one form of the update."""
    codec = TernaryCodec()
    layout = Layout.flat(VGG11S)
    count = update.indices.size
    (squeeze, back) = pack
    (make, unmake) = FORMS[form]
    ours = codec.encode(update, layout)
    theirs = squeeze(make(update))
    restored = unmake(back(theirs), count)
    if not np.array_equal(restored.to_dense(), update.to_dense()):
        raise ValueError(f"{name} of the {form}: the decoded update differs from the input")
    seconds = take_turns(
        {
            "encode": lambda: codec.encode(update, layout),
            "their encode": lambda: squeeze(make(update)),
            "decode": lambda: codec.decode(ours, layout),
            "their decode": lambda: unmake(back(theirs), count),
        },
        repeats if form == "gaps" else min(repeats, 7),
    )
    us = {key: 1e6 * value for key, value in seconds.items()}
    peer = f"{name} of the {form}"
    yield Row("size", peer, len(ours), len(theirs), "bytes")
    yield Row("encode", peer, us["encode"], us["their encode"], "us")
    yield Row("decode", peer, us["decode"], us["their decode"], "us")


class DeepCabac(NamedTuple):
    """Result of the compressor: size, and seconds to encode and decode."""

    nbytes: float
    encode: float
    decode: float


def run_nncodec(update: Ternary) -> DeepCabac | str:
    """Compress with DeepCABAC in a separate Python; return the reason if this is not possible.

    nncodec 2 needs NumPy 1, we need NumPy 2.
    """
    python = os.environ.get(PYTHON) or (sys.executable if find_spec("nncodec") else None)
    if python is None:
        return (
            "not installed; it needs numpy < 2 in a separate environment:"
            f" python -m venv NN && NN/bin/pip install nncodec, then {PYTHON}=NN/bin/python"
        )
    script = Path(__file__).with_name("nncodec_peer.py")
    done = subprocess.run(
        [python, str(script)], input=dense(update), capture_output=True, check=False
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["no error message"]
        return f"failed in {python}: {reason[-1]}"
    return DeepCabac(*map(float, done.stdout.split()[-3:]))


def _nncodec(update: Ternary, ours: bytes, seconds: float) -> Rows:
    """Compare with DeepCABAC."""
    found = run_nncodec(update)
    if isinstance(found, str):
        yield Row("nncodec", NNCODEC, note=found)
        return
    note = "lossless, of the dense array"
    yield Row("size", NNCODEC, len(ours), found.nbytes, "bytes", note=note)
    note = f"decode {found.decode:.3g} s"
    yield Row("encode", NNCODEC, 1e6 * seconds, 1e6 * found.encode, "us", note=note)
