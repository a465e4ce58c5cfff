"""Draw the first picture of the documentation: accuracy against bytes, from four recorded runs.

`python benchmarks/accuracy_bytes.py [FILE.svg]`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from fedtern.report import load_run

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "images" / "accuracy-bytes.svg"
# Where each label stands: at the end of its curve, shifted by points.
CURVES = {
    "stc": ("STC", "#0072b2", (0, 8)),
    "fedavg": ("FedAvg", "#d55e00", (-12, 16)),
    "signsgd": ("signSGD", "#009e73", (0, 10)),
    "sgd": ("uncompressed", "#555555", (0, 8)),
}


def megabytes(row: Mapping[str, Any]) -> float:
    """Return MB up and down per participating client."""
    return float(row["up_bytes_mean"] + row["down_bytes_mean"]) / 1e6


def curves() -> dict[str, list[tuple[float, float]]]:
    """Return MB and accuracy of all evaluations of each method."""
    found = {}
    for name in CURVES:
        run = load_run(DOCS / "results" / "runs" / f"logistic-mnist-{name}-10of100-c1")
        found[name] = [(megabytes(row), row["accuracy"]) for row in run.evaluations]
    return found


def draw(out: Path) -> None:
    plt.rcParams.update({"svg.hashsalt": "fedtern", "svg.fonttype": "none", "font.size": 12})
    plt.rcParams["font.family"] = "sans-serif"
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for name, points in curves().items():
        label, colour, shift = CURVES[name]
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, [100 * y for y in ys], color=colour, linewidth=3 if name == "stc" else 1.8)
        axes.plot(xs[-1], 100 * ys[-1], "o", color=colour)
        text = f"{label}: {100 * ys[-1]:.0f} %, {xs[-1]:.3g} MB"
        right = shift[0] <= 0
        axes.annotate(
            text,
            (xs[-1], 100 * ys[-1]),
            xytext=shift,
            textcoords="offset points",
            color=colour,
            ha="right" if right else "left",
            weight="bold" if name == "stc" else "normal",
        )
    axes.set(
        xscale="log",
        xlim=(2e-2, 5e2),
        ylim=(0, 105),
        xlabel="MB up and down per participating client",
        ylabel="test accuracy in %",
    )
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
