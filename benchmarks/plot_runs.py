"""Plot the primary metric against iterations and uploaded bytes, for runs of `fedtern run`.

`python benchmarks/plot_runs.py FILE.svg TITLE=RUN,RUN... TITLE=RUN...` draws two plots per title.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib import pyplot as plt

from fedtern.data.metric_spec import MetricSpec
from fedtern.report import load_run
from fedtern.report.formatting import method_label

COLOURS = {"STC": "#0072b2", "FedAvg": "#d55e00", "signSGD": "#009e73", "uncompressed": "#555555"}


def colour(label: str) -> str | None:
    return next((c for name, c in COLOURS.items() if label.startswith(name)), None)


def draw(rows: dict[str, list[Path]], out: Path) -> None:
    plt.rcParams.update({"svg.hashsalt": "fedtern", "font.size": 10})
    figure, grid = plt.subplots(
        len(rows), 2, figsize=(9, 3 * len(rows)), layout="constrained", squeeze=False, sharey="row"
    )
    for (title, paths), (left, right) in zip(rows.items(), grid, strict=True):
        for run in map(load_run, paths):
            label = method_label(run.method)
            metric = MetricSpec.of_run(run.config)
            values = [metric.value(line) for line in run.evaluations]
            style = {"label": label, "color": colour(label)}
            left.plot([line["iteration"] for line in run.evaluations], values, **style)
            right.plot([line["up_bytes_mean"] for line in run.evaluations], values, **style)
        left.set(title=title, xlabel="iterations", ylabel=f"test {metric.name}")
        right.set(xscale="log", xlabel="bytes up per participating client")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        right.legend(frameon=False, fontsize=9)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", nargs="+", help="TITLE=RUN,RUN...")
    options = parser.parse_args()
    rows = {}
    for row in options.rows:
        title, _, paths = row.rpartition("=")
        rows[title] = [Path(path) for path in paths.split(",")]
    draw(rows, options.out)


if __name__ == "__main__":
    main()
