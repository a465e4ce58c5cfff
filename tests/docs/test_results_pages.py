"""The pages under docs/results agree with the data beside them."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from fedtern.advice import group_records, load_records
from fedtern_paper import ARTEFACTS, Results, Settings
from fedtern_paper.cli.artefacts import make
from fedtern_paper.judgements import read_judgements, summarise
from fedtern_paper.outputs import write_claims

PAGES = Path(__file__).parents[2] / "docs" / "results"


def rows(name):
    with (PAGES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_scoreboard_has_the_verdict_of_every_claim():
    found, held, shorter = Counter(), Counter(), defaultdict(list)
    for row in rows("claims.csv"):
        claim, holds = (row["claim"], row["statement"]), row["holds"] == "True"
        if int(row["iterations"]) < int(row["task_iterations"]):
            shorter[claim].append(holds)
            continue
        found[claim] += 1
        held[claim] += holds
    assert len(found) >= 16
    lines = (PAGES / "index.md").read_text().splitlines()
    for (claim, statement), number in found.items():
        count, short = held[claim, statement], shorter[claim, statement]
        verdict = "held" if count == number else "held in part" if count else "did not hold here"
        start = f"| {claim} | {statement} | **{verdict}**, {count} of {number}"
        (line,) = [line for line in lines if line.startswith(start)]
        assert (f"shorter: {sum(short)} of {len(short)})" in line) == bool(short)


def test_the_claims_page_is_generated_from_its_rows(tmp_path):
    write_claims(*summarise(read_judgements(PAGES / "claims.csv")), tmp_path, lead="")
    page, made = ((path / "claims.md").read_text() for path in (PAGES, tmp_path))
    start = "| claim | statement |"
    assert page[page.index(start) :] == made[made.index(start) :]
    assert (tmp_path / "claims.csv").read_bytes() == (PAGES / "claims.csv").read_bytes()


@pytest.mark.parametrize("artefact", ["table4", "fig10"])
def test_the_lstm_pages_are_generated_from_the_runs_beside_them(artefact, tmp_path):
    kept, settings = Results(PAGES / "table4-lstm-fashion"), Settings("lstm-fashion")
    assert kept.missing(ARTEFACTS[artefact].cells(settings)) == []
    make(ARTEFACTS[artefact], settings, kept, tmp_path)
    for suffix in ("md", "csv"):
        name = f"{artefact}-lstm-fashion.{suffix}"
        assert (PAGES / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("figure", "environments"), [("fig6", 10), ("fig7", 10), ("fig8", 14), ("fig9", 5)]
)
def test_every_figure_has_three_seeds_and_its_page_says_so(figure, environments):
    cells = rows(f"{figure}-logistic-mnist.csv")
    assert len(cells) == 6 * environments
    assert {row["seeds"] for row in cells} == {"3"}
    page = (PAGES / f"{figure}-logistic-mnist.md").read_text()
    assert "seeds 0 to 2" in page
    assert f"]({figure}-logistic-mnist.svg)" in page
    assert f"({figure}-logistic-mnist.md)" in (PAGES / "index.md").read_text()


def test_advice_has_records_of_every_environment_of_the_figures():
    recorded = {
        (e.clients, e.classes_per_client, e.batch_size, e.gamma)
        for scene in group_records(load_records())
        if len({r.method["name"] for r in scene.records}) >= 3
        for e in [scene.environment]
    }
    for c in (1, 2, 3, 5, 10):
        assert {(10, c, 20, 1.0), (100, c, 20, 1.0)} <= recorded
    for batch in (1, 4, 10, 20, 40):
        assert {(10, 2, batch, 1.0), (10, 10, batch, 1.0)} <= recorded
    for clients in (5, 10, 25, 50, 100, 200, 400):
        assert {(clients, 2, 40, 1.0), (clients, 10, 40, 1.0)} <= recorded
    for gamma in (0.9, 0.925, 0.95, 0.975, 1.0):
        assert (200, 10, 20, gamma) in recorded
