"""Write the results of `fedtern bench --json` into a page, between its two markers.

`fedtern bench --json > bench.json; python benchmarks/page.py docs/performance.md bench.json` writes
a table for each benchmark, and the growth curves as figures in a folder beside the page. If several
files have the same benchmark, the last one wins. Benchmarks in none of the files stay unchanged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#555555")
CURVES = {  # figure: (suffix of its rows, label of the x axis)
    "growth-values": ("by values", "values in a vector"),
    "growth-sent": ("by values sent", "values sent, of 1,000,000"),
    "growth-uploads": ("by uploads", "uploads in a round"),
    "growth-clients": ("by clients", "clients, of whom ten take part in a round"),
}
Rows = list[dict[str, Any]]


def figure(value: float | None) -> str:
    """Format a number with three digits, or with thousands separators."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cells(row: dict[str, Any]) -> list[str]:
    target = row["target"]
    goal = ""
    if target is not None:
        sense = {">=": "≥", "<=": "≤"}[target["sense"]]
        what = "" if target["of"] == "ratio" or row["unit"] == "exponent" else f" {row['unit']}"
        verdict = {True: "yes", False: "**no**", None: "not measured"}[row["reached"]]
        goal = f"{sense} {target['bound']:g}{what}: {verdict}"
    words = "; ".join(part for part in (row["peer"], row["note"]) if part)
    figures = [figure(row[key]) for key in ("ours", "theirs")]
    return [row["name"], *figures, row["unit"], figure(row["ratio"]), goal, words]


def table(rows: Rows) -> str:
    head = "| | ours | theirs | | ratio | target | peer |\n|---|---:|---:|---|---:|---|---|"
    # Escape Markdown: a pipe ends a cell, a star starts emphasis.
    lines = [
        "| " + " | ".join(c.replace("|", "/").replace("11*", r"11\*") for c in cells(row)) + " |"
        for row in rows
    ]
    return "\n".join([head, *lines])


def machine(found: dict[str, Any]) -> str:
    about = found["machine"]
    packages = ", ".join(f"{n} {about[n]}" for n in ("numpy", "kernels", "torch") if about.get(n))
    load = "" if about.get("load") is None else f", load {about['load']:.1f} at the start"
    quick = " Measured with `--quick`: few repeats, small sizes." if found["quick"] else ""
    return (
        f"{about['cpu']}, {about['cores']} cores{load}; {about['system']}, Python"
        f" {about['python']}, {packages}.{quick}"
    )


def draw(rows: Rows, folder: Path) -> list[str]:
    """Draw a figure for each measured kind of growth and return the names."""
    from matplotlib import pyplot as plt  # pip install 'fedtern[report]'

    plt.rcParams.update({"svg.hashsalt": "fedtern", "font.size": 10})
    drawn = []
    for name, (ending, label) in CURVES.items():
        curves = [row for row in rows if row["name"].endswith(", " + ending) and row["points"]]
        if not curves:
            continue
        picture, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        for row, colour in zip(curves, COLOURS, strict=False):
            x, y = zip(*row["points"], strict=True)
            stage = row["name"].removesuffix(", " + ending)
            axes.plot(x, y, "o-", ms=3, color=colour, label=f"{stage}: {row['ours']:.2f}")
        first = curves[0]["points"]
        steepest = [first[-1][1] * at / first[-1][0] for at, _ in first]
        axes.plot([at for at, _ in first], steepest, ":", color="#999999", label="linear: 1")
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="milliseconds")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, title="exponent of each")
        folder.mkdir(parents=True, exist_ok=True)
        picture.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(picture)
        drawn.append(name)
    return drawn


def measured(files: list[dict[str, Any]], page: Path) -> dict[str, str]:
    """Return the new text for each benchmark."""
    parts: dict[str, str] = {}
    for found in files:
        for name in dict.fromkeys(row["benchmark"] for row in found["rows"]):
            rows = [row for row in found["rows"] if row["benchmark"] == name]
            pictures = draw(rows, page.parent / "images") if name == "growth" else []
            images = [
                f"![Milliseconds of each stage against {CURVES[picture][1]}](images/{picture}.svg)"
                for picture in pictures
            ]
            parts[name] = "\n\n".join([machine(found), table(rows), *images])
    return parts


def sections(body: str) -> dict[str, str]:
    """Return the existing text for each benchmark."""
    parts = [part.partition("\n") for part in f"\n{body}".split("\n### ")[1:]]
    return {name.strip(): text.strip() for name, _, text in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    files = [json.loads(path.read_text().splitlines()[-1]) for path in options.results]
    text = options.page.read_text()
    before, begin, rest = text.partition(BEGIN)
    body, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{options.page} lacks the markers {BEGIN} and {END}")
    parts = sections(body) | measured(files, options.page)
    body = "\n\n".join(f"### {name}\n\n{text}" for name, text in parts.items())
    options.page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}")


if __name__ == "__main__":
    main()
