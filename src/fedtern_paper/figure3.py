"""Figure 3: how often the sign of a small batch's gradient is that of the whole gradient."""

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
from fedtern.store.files import write_atomic
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import get_task
from fedtern_paper.artefact import Moved, Table
from fedtern_paper.paper import CONGRUENCE
from fedtern_paper.plot_style import head, tidy
from fedtern_paper.results import Results
from fedtern_paper.scores import mean, spread
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import IID, NON_IID

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
BATCHES, EXAMPLES = 400, 20_000  # at most, for each size; a tenth with --quick
BINS = 50

NOTES = (
    "α(k): how often the sign of a gradient over k examples is that of the gradient over all"
    " training data, the mean over all parameters; at the first weights, which each seed draws.",
    "Batches are of all data (iid), or of one class each (non-iid).",
    "The paper prints α(1) = 0.51 for the weights of logistic regression on MNIST. It depends on"
    " the first weights: a pixel that is always black has the same sign in nine of ten examples,"
    " and whether it is that of the whole gradient follows from how probable they make a class.",
)

Signs = NDArray[np.float32]


@dataclass(frozen=True)
class Congruence:
    """``alpha[place]`` is α(k) for each of ``sizes``; ``bins`` count the α_w(1) of iid batches."""

    sizes: list[int]
    batches: list[int]
    alpha: dict[str, list[float]]
    bins: dict[str, list[int]]


def cells(settings: Settings) -> list[Experiment]:
    """None: gradients of a new model are all it takes."""
    return []


def measure(
    settings: Settings, results: Results, moved: Moved = lambda _share: None
) -> list[Congruence]:
    """The congruence for each seed, kept beside the runs so that it is computed once."""
    found: list[Congruence] = []
    seeds = settings.seeds
    for seed in range(seeds):
        found.append(_measured(settings, results, seed, lambda s: moved((len(found) + s) / seeds)))
    return found


def _measured(settings: Settings, results: Results, seed: int, moved: Moved) -> Congruence:
    # Hidden, for everything else in there is the directory of a run.
    kept = results.out / f".congruence-{settings.task}-{seed}{'-quick' * settings.quick}.json"
    if kept.exists():
        return Congruence(**json.loads(kept.read_text()))
    dataset = get_task(settings.task).load(results.data_dir)
    found = _measure(settings, dataset, 10 if settings.quick else 1, seed, moved)
    results.out.mkdir(parents=True, exist_ok=True)
    write_atomic(kept, [json.dumps(vars(found)).encode()])
    return found


def _measure(
    settings: Settings, dataset: Dataset, share: int, seed: int, moved: Moved
) -> Congruence:
    task = get_task(settings.task)
    model, examples = FlatModel(task.build(seed)), Examples.train(dataset, None, task.transform)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(3,)))
    found = Congruence([], [], {IID: [], NON_IID: []}, {})
    with _one_thread():
        whole = _whole_signs(model, examples)
        for size in SIZES:
            if size > np.bincount(dataset.train_labels).min():
                break  # no class has as many
            number = max(min(BATCHES, EXAMPLES // size) // share, 1)
            found.sizes.append(size)
            found.batches.append(number)
            for place, alpha in found.alpha.items():
                same = np.zeros(whole.size)
                for batch in _batches(place, size, number, dataset, rng):
                    same += np.sign(model.differentiate(*examples.batch(batch))) == whole
                # Where the whole gradient is zero, there is no sign to find.
                congruence = (same / number)[whole != 0]
                alpha.append(float(congruence.mean()))
                if size == 1:
                    found.bins[place] = np.histogram(congruence, BINS, (0, 1))[0].tolist()
            moved(len(found.sizes) / len(SIZES))
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Gradients of single examples are too small to be shared between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(
    place: str, size: int, number: int, dataset: Dataset, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Batches of all data, or each of one class."""
    labels = dataset.train_labels
    by_class = [np.flatnonzero(labels == c) for c in range(dataset.num_classes)]
    for _ in range(number):
        pool = by_class[rng.integers(dataset.num_classes)]
        among = labels.size if place == IID else pool.size
        chosen = rng.choice(among, size, replace=False)
        yield (chosen if place == IID else pool[chosen]).astype(np.int64)


def _whole_signs(model: FlatModel, examples: Examples) -> Signs:
    total = np.zeros(model.layout.size)
    for inputs, labels in examples.chunks(1000):
        total += model.differentiate(inputs, labels) * len(labels)
    return np.sign(total).astype(np.float32)


def table(settings: Settings, results: Results) -> Table:
    """α(k) for every batch size, and what the paper prints of it."""
    found = measure(settings, results)
    printed = CONGRUENCE if settings.task == "logistic-mnist" else None
    columns = (found[0].sizes, found[0].batches, alphas(found, IID), alphas(found, NON_IID))
    rows = list(zip(*columns, strict=True))
    values: list[dict[str, Any]] = [
        {
            "quantity": "alpha(k)",
            "at": size,
            "iid": mean(iid),
            "iid_std": spread(iid),
            "non_iid": mean(skewed),
            "non_iid_std": spread(skewed),
            "batches": number,
            "paper_iid": printed if size == 1 else None,
        }
        for size, number, iid, skewed in rows
    ]
    values += [
        {
            "quantity": "share of alpha_w(1)",
            "at": place / BINS,
            "iid": float(iid),
            "iid_std": None,
            "non_iid": float(skewed),
            "non_iid_std": None,
            "batches": found[0].batches[0],
            "paper_iid": None,
        }
        for place, (iid, skewed) in enumerate(
            zip(_shares(found, IID), _shares(found, NON_IID), strict=True)
        )
    ]
    shown = [
        {
            "batch size": str(size),
            "iid": _shown(iid),
            "one class": _shown(skewed),
            "batches": str(number),
            "paper, iid": f"{printed}" if printed and size == 1 else "",
        }
        for size, number, iid, skewed in rows
    ]
    return Table("Congruence of gradient signs", values, shown, NOTES)


def alphas(found: Sequence[Congruence], place: str) -> list[list[float]]:
    """For every batch size what the seeds came to."""
    return [list(seeds) for seeds in zip(*(one.alpha[place] for one in found), strict=True)]


def _shares(found: Sequence[Congruence], place: str) -> NDArray[np.float64]:
    """The share of the parameters in each bin, over all seeds."""
    bins = np.sum([one.bins[place] for one in found], axis=0)
    return np.asarray(bins / max(bins.sum(), 1))


def _shown(values: Sequence[float]) -> str:
    deviation = spread(values)
    return f"{mean(values):.3f}" + (f" ± {deviation:.3f}" if deviation else "")


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """The distribution of α_w(1) on the left, α(k) on the right."""
    found = measure(settings, results)
    sizes = found[0].sizes
    figure.set_size_inches(10, 4.4)
    left, right = figure.subplots(1, 2)
    edges = np.linspace(0, 1, BINS + 1)
    share = _shares(found, IID)
    left.bar(edges[:-1], 100 * share, 1 / BINS, align="edge", color="#0072B2", alpha=0.8)
    first = mean(alphas(found, IID)[0])
    left.axvline(first, color="black", linestyle="--", label=f"mean α(1) = {first:.2f}")
    left.set(xlabel="α_w(1), iid batches", ylabel="parameters in %")
    looks = {IID: ("#0072B2", "o", "iid"), NON_IID: ("#D55E00", "s", "one class in each batch")}
    for place, (colour, marker, label) in looks.items():
        each = alphas(found, place)
        deviations = [spread(seeds) or 0 for seeds in each]
        right.errorbar(
            sizes, [*map(mean, each)], deviations,
            color=colour, marker=marker, capsize=2, label=label,
        )  # fmt: skip
    right.set(xscale="log", xlabel="batch size k", ylabel="α(k)")
    right.minorticks_off()
    right.set_xticks(sizes, list(map(str, sizes)))
    for axes in (left, right):
        axes.legend(frameon=False, loc="upper left")  # to look for the best place takes long
        tidy(axes)
    head(figure, "Congruence of gradient signs", f"{settings.task}, at the first weights")
