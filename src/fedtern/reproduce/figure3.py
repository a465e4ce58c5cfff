"""Figure 3: how often the sign of a small batch's gradient is that of the whole gradient."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtern.data import Dataset
from fedtern.experiments import Experiment
from fedtern.files import write_whole
from fedtern.reproduce.artefact import Table
from fedtern.reproduce.looks import head, tidy
from fedtern.reproduce.paper import CONGRUENCE
from fedtern.reproduce.results import Results
from fedtern.reproduce.settings import Settings
from fedtern.reproduce.verdicts import IID, NON_IID
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.tasks import get_task

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
BATCHES, EXAMPLES = 400, 20_000  # at most, for each size; a tenth with --quick
BINS = 50

NOTES = (
    "α(k): how often the sign of a gradient over k examples is that of the gradient over all"
    " training data, the mean over all parameters; at the first weights, those of seed 0.",
    "Batches are of all data (iid), or of one class each (non-iid).",
    "The paper prints α(1) = 0.51 for the weights of logistic regression on MNIST.",
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


def measure(settings: Settings, results: Results) -> Congruence:
    """The congruence for seed 0, kept beside the runs so that it is computed once."""
    share = 10 if settings.quick else 1
    # Hidden, for everything else in there is the directory of a run.
    kept = results.out / f".congruence-{settings.task}{'-quick' * settings.quick}.json"
    if kept.exists():
        return Congruence(**json.loads(kept.read_text()))
    found = _measure(settings, get_task(settings.task).load(results.data_dir), share)
    results.out.mkdir(parents=True, exist_ok=True)
    write_whole(kept, [json.dumps(vars(found)).encode()])
    return found


def _measure(settings: Settings, dataset: Dataset, share: int) -> Congruence:
    task = get_task(settings.task)
    model, examples = FlatModel(task.build(0)), Examples.train(dataset, None, task.transform)
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(3,)))
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
    columns = (found.sizes, found.batches, found.alpha[IID], found.alpha[NON_IID])
    rows = list(zip(*columns, strict=True))
    values: list[dict[str, Any]] = [
        {
            "quantity": "alpha(k)",
            "at": size,
            "iid": iid,
            "non_iid": skewed,
            "batches": number,
            "paper_iid": printed if size == 1 else None,
        }
        for size, number, iid, skewed in rows
    ]
    values += [
        {
            "quantity": "share of alpha_w(1)",
            "at": place / BINS,
            "iid": iid / sum(found.bins[IID]),
            "non_iid": skewed / sum(found.bins[NON_IID]),
            "batches": found.batches[0],
            "paper_iid": None,
        }
        for place, (iid, skewed) in enumerate(
            zip(found.bins[IID], found.bins[NON_IID], strict=True)
        )
    ]
    shown = [
        {
            "batch size": str(size),
            "iid": f"{iid:.3f}",
            "one class": f"{skewed:.3f}",
            "batches": str(number),
            "paper, iid": f"{printed}" if printed and size == 1 else "",
        }
        for size, number, iid, skewed in rows
    ]
    return Table("Congruence of gradient signs", values, shown, NOTES)


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """The distribution of α_w(1) on the left, α(k) on the right."""
    found = measure(settings, results)
    figure.set_size_inches(10, 4.4)
    left, right = figure.subplots(1, 2)
    edges = np.linspace(0, 1, BINS + 1)
    share = np.array(found.bins[IID]) / max(sum(found.bins[IID]), 1)
    left.bar(edges[:-1], 100 * share, 1 / BINS, align="edge", color="#0072B2", alpha=0.8)
    first = found.alpha[IID][0]
    left.axvline(first, color="black", linestyle="--", label=f"mean α(1) = {first:.2f}")
    left.set(xlabel="α_w(1), iid batches", ylabel="parameters in %")
    looks = {IID: ("#0072B2", "o", "iid"), NON_IID: ("#D55E00", "s", "one class in each batch")}
    for place, (colour, marker, label) in looks.items():
        right.plot(found.sizes, found.alpha[place], color=colour, marker=marker, label=label)
    right.set(xscale="log", xlabel="batch size k", ylabel="α(k)")
    right.minorticks_off()
    right.set_xticks(found.sizes, list(map(str, found.sizes)))
    for axes in (left, right):
        axes.legend(frameon=False)
        tidy(axes)
    head(figure, "Congruence of gradient signs", f"{settings.task}, at the first weights")
