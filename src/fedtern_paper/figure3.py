"""Figure 3: how often the gradient of a small batch has the sign of the full gradient."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtern.data import Dataset
from fedtern.runs import Experiment
from fedtern.store import write_atomic
from fedtern.training import Examples, FlatModel, get_task
from fedtern_paper.artefact import ProgressCallback, Table
from fedtern_paper.plot_style import add_title, tidy
from fedtern_paper.published import CONGRUENCE
from fedtern_paper.results import Results, mean, spread
from fedtern_paper.settings import IID, NON_IID, Settings

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
MAX_BATCHES = 400  # per batch size; a tenth with --quick
MAX_EXAMPLES = 20_000  # per batch size
BINS = 50

NOTES = (
    "α(k): how often the gradient over k examples has the same sign as the gradient over all"
    " training data, averaged over all parameters, at the initial weights. Each seed draws its own"
    " initial weights.",
    "Batches are drawn from all data (iid), or each from a single class (non-iid).",
    "The paper prints α(1) = 0.51 for the weights of logistic regression on MNIST. The value"
    " depends on the initial weights: the gradient for a pixel that is always black has the same"
    " sign in nine of ten examples, and whether this is also the sign of the full gradient depends"
    " on the initial probability of the class.",
)

Signs = NDArray[np.float32]


@dataclass(frozen=True)
class Congruence:
    """Agreement of gradient signs.

    Attributes:
        sizes: Batch sizes k.
        batches: Number of batches of each size.
        alpha: α(k) for each size, by place.
        bins: Histogram of α_w(1) over the parameters w, by place.

    """

    sizes: list[int]
    batches: list[int]
    alpha: dict[str, list[float]]
    bins: dict[str, list[int]]


def cells(settings: Settings) -> list[Experiment]:
    """Return []: the figure needs the gradients of an untrained model only."""
    return []


def measure(
    settings: Settings, results: Results, progress: ProgressCallback = lambda _fraction: None
) -> list[Congruence]:
    """Return the congruence for each seed; it is computed once and stored beside the runs."""

    def seed_progress(seed: int) -> ProgressCallback:
        return lambda fraction: progress((seed + fraction) / settings.seeds)

    return [
        _load_or_measure(settings, results, seed, seed_progress(seed))
        for seed in range(settings.seeds)
    ]


def _load_or_measure(
    settings: Settings, results: Results, seed: int, progress: ProgressCallback
) -> Congruence:
    # The name starts with a dot because everything else in the directory is a run.
    suffix = "-quick" if settings.quick else ""
    path = results.out / f".congruence-{settings.task}-{seed}{suffix}.json"
    if path.exists():
        return Congruence(**json.loads(path.read_text()))
    dataset = get_task(settings.task).load(results.data_dir)
    measured = _measure(settings, dataset, seed, progress)
    results.out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, [json.dumps(vars(measured)).encode()])
    return measured


def _measure(
    settings: Settings, dataset: Dataset, seed: int, progress: ProgressCallback
) -> Congruence:
    task = get_task(settings.task)
    model = FlatModel(task.build(seed))
    examples = Examples.train(dataset, None, task.transform)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    measured = Congruence([], [], {IID: [], NON_IID: []}, {})
    with _one_thread():
        full = _full_gradient_signs(model, examples)
        for size in SIZES:
            if size > np.bincount(dataset.train_labels).min():
                break  # some class has fewer examples
            number = min(MAX_BATCHES, MAX_EXAMPLES // size)
            if settings.quick:
                number = max(number // 10, 1)
            measured.sizes.append(size)
            measured.batches.append(number)
            for place, alpha in measured.alpha.items():
                same = np.zeros(full.size)
                for batch in _batches(place, size, number, dataset, rng):
                    same += np.sign(model.gradient(*examples.batch(batch))) == full
                # Where the full gradient is zero, it has no sign.
                congruence = (same / number)[full != 0]
                alpha.append(float(congruence.mean()))
                if size == 1:
                    measured.bins[place] = np.histogram(congruence, BINS, (0, 1))[0].tolist()
            progress(len(measured.sizes) / len(SIZES))
    return measured


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: gradients of single examples are too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(
    place: str, size: int, number: int, dataset: Dataset, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Return the indices of random batches: of all data, or each of a single class."""
    labels = dataset.train_labels
    num_classes = dataset.num_classes or 1
    by_class = [np.flatnonzero(dataset.classes == c) for c in range(num_classes)]
    for _ in range(number):
        one_class = by_class[rng.integers(num_classes)]
        available = labels.size if place == IID else one_class.size
        chosen = rng.choice(available, size, replace=False)
        yield (chosen if place == IID else one_class[chosen]).astype(np.int64)


def _full_gradient_signs(model: FlatModel, examples: Examples) -> Signs:
    total = np.zeros(model.layout.size)
    for inputs, labels in examples.chunks(1000):
        total += model.gradient(inputs, labels) * len(labels)
    return np.sign(total).astype(np.float32)


def table(settings: Settings, results: Results) -> Table:
    """Return α(k) for every batch size, beside the number that the paper prints."""
    measured = measure(settings, results)
    published = CONGRUENCE.get(settings.task)
    columns = (
        measured[0].sizes,
        measured[0].batches,
        alphas(measured, IID),
        alphas(measured, NON_IID),
    )
    rows = list(zip(*columns, strict=True))
    values: list[dict[str, Any]] = [
        {
            "quantity": "alpha(k)",
            "at": size,
            "iid": mean(iid),
            "iid_std": spread(iid),
            "non_iid": mean(non_iid),
            "non_iid_std": spread(non_iid),
            "batches": number,
            "paper_iid": published if size == 1 else None,
        }
        for size, number, iid, non_iid in rows
    ]
    shares = zip(_bin_shares(measured, IID), _bin_shares(measured, NON_IID), strict=True)
    values += [
        {
            "quantity": "share of alpha_w(1)",
            "at": index / BINS,
            "iid": float(iid),
            "iid_std": None,
            "non_iid": float(non_iid),
            "non_iid_std": None,
            "batches": measured[0].batches[0],
            "paper_iid": None,
        }
        for index, (iid, non_iid) in enumerate(shares)
    ]
    shown = [
        {
            "batch size": str(size),
            "iid": _format_alpha(iid),
            "one class": _format_alpha(non_iid),
            "batches": str(number),
            "paper, iid": f"{published}" if published and size == 1 else "",
        }
        for size, number, iid, non_iid in rows
    ]
    return Table("Congruence of gradient signs", values, shown, NOTES)


def alphas(measured: Sequence[Congruence], place: str) -> list[list[float]]:
    """Return α(k) of all seeds for each batch size."""
    return [list(seeds) for seeds in zip(*(each.alpha[place] for each in measured), strict=True)]


def _bin_shares(measured: Sequence[Congruence], place: str) -> NDArray[np.float64]:
    """Return the share of the parameters in each bin, over all seeds."""
    bins = np.sum([each.bins[place] for each in measured], axis=0)
    return np.asarray(bins / max(bins.sum(), 1))


def _format_alpha(values: Sequence[float]) -> str:
    deviation = spread(values)
    return f"{mean(values):.3f}" + (f" ± {deviation:.3f}" if deviation else "")


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Draw the distribution of α_w(1) on the left and α(k) on the right."""
    measured = measure(settings, results)
    sizes = measured[0].sizes
    figure.set_size_inches(10, 4.4)
    left, right = figure.subplots(1, 2)
    edges = np.linspace(0, 1, BINS + 1)
    shares = _bin_shares(measured, IID)
    left.bar(edges[:-1], 100 * shares, 1 / BINS, align="edge", color="#0072B2", alpha=0.8)
    first = mean(alphas(measured, IID)[0])
    left.axvline(first, color="black", linestyle="--", label=f"mean α(1) = {first:.2f}")
    left.set(xlabel="α_w(1), iid batches", ylabel="parameters in %")
    styles = {IID: ("#0072B2", "o", "iid"), NON_IID: ("#D55E00", "s", "one class in each batch")}
    for place, (colour, marker, label) in styles.items():
        by_size = alphas(measured, place)
        deviations = [spread(seeds) or 0 for seeds in by_size]
        right.errorbar(
            sizes, [*map(mean, by_size)], deviations,
            color=colour, marker=marker, capsize=2, label=label,
        )  # fmt: skip
    right.set(xscale="log", xlabel="batch size k", ylabel="α(k)")
    right.minorticks_off()
    right.set_xticks(sizes, list(map(str, sizes)))
    for axes in (left, right):
        axes.legend(frameon=False, loc="upper left")  # searching for the best place is slow
        tidy(axes)
    add_title(figure, "Congruence of gradient signs", f"{settings.task}, at the first weights")
