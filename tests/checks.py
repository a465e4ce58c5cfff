"""Checks, sample data and helpers that tests of several modules share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from fedtern import METHODS as BY_NAME
from fedtern import (
    Client,
    DecodeError,
    Layout,
    Method,
    Server,
    fedavg,
    sgd,
    signsgd,
    stc,
    stc_plus,
    topk,
)
from fedtern.core.codecs import (
    AdaptiveCodec,
    BinaryCodec,
    Codec,
    CosinesCodec,
    DenseCodec,
    EliasCodec,
    LowRankCodec,
    MaskedCodec,
    NothingCodec,
    PaletteCodec,
    PowersCodec,
    ProjectedCodec,
    RotatedCodec,
    SignCountsCodec,
    SignsCodec,
    SketchedCodec,
    SparseCodec,
    SparseOrDenseCodec,
    StepsCodec,
    TensorSignsCodec,
    TernaryCodec,
    TritsCodec,
    UpdateSequenceCodec,
)
from fedtern.core.compressors import (
    CosineTopK,
    Identity,
    RandomMask,
    RandomSubspace,
    RotatedCentroids,
    ScaledSign,
    Sign,
    Sketch,
    SparseBinary,
    SparsePalette,
    SparseSteps,
    SparseTernary,
    SpectralAtoms,
    StochasticLevels,
    StochasticTernary,
    TopK,
)
from fedtern.core.feedback import Memoryless
from fedtern.core.feedback.variance_threshold import powers_of_two
from fedtern.core.kernels import top_k
from fedtern.core.layout import Vector
from fedtern.core.protocol import Broadcast
from fedtern.core.updates import Sparse, Update
from fedtern.core.updates.sums import merge_updates

LAYOUT = Layout(("conv", "bias", "fc"), ((4, 3, 2), (4,), (3, 5)))

# Methods with rates high enough for a small model.
METHODS: dict[str, Method] = {
    "sgd": sgd(),
    "fedavg": fedavg(local_steps=4, weighted=True),
    "signsgd": signsgd(delta=0.01),
    "topk": topk(p_up=0.1),
    "topk-both-ways": topk(p_up=0.1, p_down=0.2),
    "topk-adaptive": topk(p_up=0.1, p_down=0.2, codec="adaptive"),
    "stc": stc(p_up=0.1, p_down=0.1),
    "stc-tensor": stc(p_up=0.1, p_down=0.2, scope="tensor", weighted=True),
    "stc-adaptive": stc(p_up=0.1, p_down=0.1, codec="adaptive"),
    "stc-powers": stc(p_up=0.1, p_down=0.1, magnitudes="powers"),
    "stc-powers-tensor": stc(
        p_up=0.1, p_down=0.2, scope="tensor", codec="adaptive", magnitudes="powers"
    ),
    "stc-plus": stc_plus(p_up=0.1, participation=0.5),
    "stc-plus-auto": stc_plus(participation=0.1),
    "stc-momentum": stc(p_up=0.1, p_down=0.1, server_optimizer="nesterov", server_lr=0.7),
    "stc-powers-yogi": stc(
        p_up=0.1, p_down=0.1, magnitudes="powers", server_optimizer="yogi", server_lr=0.05
    ),
    "fedavg-momentum": fedavg(local_steps=4, server_optimizer="momentum"),
    "fedavg-adam": fedavg(local_steps=4, server_optimizer="adam"),
    "fedavg-median": fedavg(local_steps=4, aggregate="median"),
    "stc-clip": stc(p_up=0.1, p_down=0.1, aggregate="clip:0.5"),
    "sbc": BY_NAME["sbc"](p=0.1, scope="model"),
    "sbc-tensor": BY_NAME["sbc"](p=0.1),
    "sbc-adaptive": BY_NAME["sbc"](p=0.1, codec="adaptive"),
    "gradient_dropping": BY_NAME["gradient_dropping"](p=0.1),
    "dgc": BY_NAME["dgc"](p=0.05, clip=0.3, warmup=2),
    "strom": BY_NAME["strom"](tau=0.1),
    "variance": BY_NAME["variance"](alpha=0.9),
    "ef_signsgd": BY_NAME["ef_signsgd"](),
    "ef_signsgd-both-ways": BY_NAME["ef_signsgd"](both_ways=True),
    "terngrad": BY_NAME["terngrad"](),
    "qsgd": BY_NAME["qsgd"](levels=4, bucket=16),
    "grid": BY_NAME["grid"](),
    "atomo": BY_NAME["atomo"](rank=2),
    "powersgd": BY_NAME["powersgd"](rank=2),
    "structured": BY_NAME["structured"](p=0.25),
    "structured-rank": BY_NAME["structured"](rank=1),
    "sketched": BY_NAME["sketched"](p=0.5, bits=3),
    "sparseloco": BY_NAME["sparseloco"](p=0.1, chunk=16),
    "sparseloco-both-ways": BY_NAME["sparseloco"](
        p=0.2, p_down=0.2, chunk=16, codec="adaptive", server_optimizer="nesterov", server_lr=0.7
    ),
    "demo": BY_NAME["demo"](k=2, decay=0.9, delta=0.01),
    "demo-mean": BY_NAME["demo"](k=2, decay=0.9, delta=None),
    "eden": BY_NAME["eden"](),
    "eden-both-ways": BY_NAME["eden"](bits=2, both_ways=True),
}

# The names are also those of the golden vectors, so they never change.
CODECS: dict[str, Codec] = {
    "nothing": NothingCodec(),
    "dense": DenseCodec(),
    "sparse": SparseCodec(),
    "ternary": TernaryCodec("model"),
    "ternary-tensor": TernaryCodec("tensor"),
    "signs": SignsCodec(),
    "exact": SparseOrDenseCodec(),
    "series": UpdateSequenceCodec(),
    "series-tensor": UpdateSequenceCodec(),
    "series-sparse": UpdateSequenceCodec(),
    "tally": SignCountsCodec(),
    "binary": BinaryCodec("model"),
    "binary-tensor": BinaryCodec("tensor"),
    "trits": TritsCodec(),
    "elias": EliasCodec(),
    "elias-sparse": EliasCodec(),
    "signs-tensor": TensorSignsCodec(),
    "low-rank": LowRankCodec(),
    "masked": MaskedCodec(),
    "projected": ProjectedCodec(),
    "sketched": SketchedCodec(),
    "powers": PowersCodec(),
    "adaptive": AdaptiveCodec(TernaryCodec("model")),
    "adaptive-tensor": AdaptiveCodec(TernaryCodec("tensor")),
    "adaptive-sparse": AdaptiveCodec(SparseCodec()),
    "adaptive-binary": AdaptiveCodec(BinaryCodec("tensor")),
    "steps": StepsCodec("model"),
    "steps-tensor": StepsCodec("tensor"),
    "steps-golomb": StepsCodec("model", adaptive=False),
    "rotated": RotatedCodec(),
    "palette": PaletteCodec(),
    "adaptive-palette": AdaptiveCodec(PaletteCodec()),
    "cosines": CosinesCodec(),
}


def random_vector(rng: np.random.Generator, size: int, zeros: float = 0.3) -> Vector:
    """Return values of many scales, including zeros and ties."""
    x = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)
    x = np.where(rng.random(size) < 0.3, np.round(x, 1), x)
    return np.where(rng.random(size) < zeros, 0, x).astype(np.float32)


def sample_update(name: str, layout: Layout, rng: np.random.Generator) -> Update:
    """Return a random update that ``CODECS[name]`` can encode."""
    p = float(rng.uniform(0.01, 0.6))
    x = random_vector(rng, layout.size)

    def merged(compressor: Any) -> Update:
        num_updates = int(rng.integers(1, 6))
        updates = [
            compressor.compress(random_vector(rng, layout.size), layout, rng)
            for _ in range(num_updates)
        ]
        return merge_updates(updates) or merged(compressor)

    low_p = min(p, 0.15)
    makers = {
        "nothing": lambda: Sparse.empty(layout.size),
        "dense": lambda: Identity().compress(x, layout, rng),
        "sparse": lambda: TopK(p).compress(x, layout, rng),
        "ternary": lambda: SparseTernary(p).compress(x, layout, rng),
        "ternary-tensor": lambda: SparseTernary(p, "tensor").compress(x, layout, rng),
        "signs": lambda: Sign(0.25).compress(x, layout, rng),
        "exact": lambda: Identity().compress(random_vector(rng, layout.size, p), layout, rng),
        "series": lambda: merged(SparseTernary(low_p)),
        "series-tensor": lambda: merged(SparseTernary(low_p, "tensor")),
        "series-sparse": lambda: merged(TopK(low_p)),
        "tally": lambda: merged(Sign(0.25)),
        "binary": lambda: SparseBinary(p).compress(x, layout, rng),
        "binary-tensor": lambda: SparseBinary(p, "tensor").compress(x, layout, rng),
        "trits": lambda: StochasticTernary().compress(x, layout, rng),
        "elias": lambda: StochasticLevels(9, 16, "max").compress(x, layout, rng),
        "elias-sparse": lambda: StochasticLevels(1, layout.size).compress(x, layout, rng),
        "signs-tensor": lambda: ScaledSign().compress(x, layout, rng),
        "low-rank": lambda: SpectralAtoms(1).compress(x, layout, rng),
        "masked": lambda: RandomMask(p).compress(x, layout, rng),
        "projected": lambda: RandomSubspace(1).compress(x, layout, rng),
        "sketched": lambda: Sketch(p, bits=int(rng.integers(1, 5))).compress(x, layout, rng),
        "powers": lambda: powers_of_two(x, top_k(x, 1 + layout.size // 4), layout),
        "adaptive": lambda: SparseTernary(p).compress(x, layout, rng),
        "adaptive-tensor": lambda: SparseTernary(p, "tensor").compress(x, layout, rng),
        "adaptive-sparse": lambda: TopK(p).compress(x, layout, rng),
        "adaptive-binary": lambda: SparseBinary(p, "tensor").compress(x, layout, rng),
        "steps": lambda: merged(SparseSteps(p)),
        "steps-tensor": lambda: merged(SparseSteps(p, "tensor")),
        "steps-golomb": lambda: merged(SparseSteps(p)),
        "palette": lambda: SparsePalette(p, 16).compress(x, layout, rng),
        "adaptive-palette": lambda: SparsePalette(p, 16).compress(x, layout, rng),
        "cosines": lambda: CosineTopK(int(rng.integers(1, 9))).compress(x, layout, rng),
        "rotated": lambda: RotatedCentroids(int(rng.integers(1, 5))).compress(x, layout, rng),
    }
    return makers[name]()


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; dataclasses with arrays must be equal bit by bit."""
    if is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def check_codec(codec: Codec, update: Update, layout: Layout) -> None:
    """Check that decoding undoes encoding, and that shorter or longer bytes are refused."""
    data = codec.encode(update, layout)
    decoded = codec.decode(data, layout)
    assert decoded.size == update.size
    assert np.array_equal(decoded.to_dense(), update.to_dense())
    assert codec.encode(update, layout) == data
    if not isinstance(codec, SparseOrDenseCodec):
        assert same(decoded, update)
        assert codec.encode(decoded, layout) == data
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            codec.decode(data[:cut], layout)
    with pytest.raises(DecodeError):
        codec.decode(data + b"\0", layout)


def pair(method: Method, layout: Layout = LAYOUT, clients: int = 3) -> tuple[Server, list[Client]]:
    """Return a server and clients that start from the same random weights."""
    weights = np.random.default_rng(7).standard_normal(layout.size).astype(np.float32)
    server = Server(weights, method, layout)
    return server, [Client(i, method, layout, weights) for i in range(clients)]


def play_round(
    server: Server, clients: list[Client], cohort: list[int], seed: int = 0
) -> Broadcast:
    """Play one round in which every upload of the cohort arrives."""
    for i in cohort:
        clients[i].receive(server.catch_up(i, clients[i].round).data)
        server.receive(i, clients[i].send(trained(clients[i], seed)).data, num_examples=10 + i)
    return server.finish_round()


def is_memoryless(method: Method) -> bool:
    """Whether clients drop the error of compression."""
    return isinstance(method.up.feedback, Memoryless)


def trained(client: Client, seed: int) -> Vector:
    """Return a client's weights after some pretended training."""
    rng = np.random.default_rng([seed, client.client_id, client.round])
    return client.weights + 0.1 * rng.standard_normal(client.weights.size).astype(np.float32)


vectors = st.builds(
    lambda seed, size, zeros: random_vector(np.random.default_rng(seed), size, zeros),
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
