"""Findings: whether the paper's statements about single figures hold, with evidence."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedtern_paper import ARTEFACTS, Results, Settings, table4
from paper.fakes import finish

TASK = "logistic-mnist"


def find(out, name, accuracy, **chosen):
    """Write a finished run with an accuracy for every cell, and return the findings."""
    artefact = ARTEFACTS[name]
    settings = artefact.adjust(Settings(TASK, **chosen))
    for cell in {cell.digest: cell for cell in artefact.cells(settings)}.values():
        finish(out, cell, accuracy(cell))
    return artefact.findings(settings, Results(out))


def test_without_runs_there_are_no_findings(tmp_path):
    for name in ("fig2", "fig4", "fig5", "fig10", "fig12"):
        settings = ARTEFACTS[name].adjust(Settings(TASK))
        assert ARTEFACTS[name].findings(settings, Results(tmp_path)) == []


def test_figure_2_compares_the_losses_to_non_iid_data(tmp_path):
    def accuracy(cell, least="topk"):
        fewer = 10 - cell.environment.classes_per_client
        return 0.9 - fewer * (0.001 if cell.method["name"] == least else 0.02)

    (line,) = find(tmp_path / "a", "fig2", accuracy)
    assert line == (
        "The paper: top-k suffers least from non-iid data. Held here. Points lost with two classes"
        " and with one class per client: signSGD δ=0.0002 16.0 and 18.0, FedAvg n=100 16.0 and"
        " 18.0, top-k p=1/100 0.8 and 0.9."
    )
    part = ARTEFACTS["fig2"].adjust(Settings(TASK, places=("iid",)))
    assert ARTEFACTS["fig2"].findings(part, Results(tmp_path / "a")) == []
    (line,) = find(tmp_path / "b", "fig2", lambda cell: accuracy(cell, "signsgd"))
    assert "Did not hold here." in line


@pytest.mark.parametrize(
    ("accuracies", "arrival", "verdict"),
    [
        ((0.92, 0.92, 0.92, 0.92), "1,250", "Did not hold"),
        ((0.5, 0.92, 0.92, 0.92), "2,500", "Did not hold"),  # equally many are not fewer
        ((0.5, 0.5, 0.92, 0.92), "3,750", "Held"),
        ((0.5, 0.5, 0.5, 0.5), "n.a.", "Held"),
    ],
)
def test_figure_10_compares_methods_with_similar_uploads(tmp_path, accuracies, arrival, verdict):
    settings = Settings(TASK)
    curves = {
        "stc": (0.5, 0.92, 0.92, 0.92),
        "fedavg": (0.5, 0.5, 0.92, 0.92),
        "fedavg:local_steps=100": accuracies,
    }
    # Per iteration, FedAvg n = 100 uploads as much as STC p = 1/25, and n = 400 as p = 1/100.
    bytes_up = {"fedavg": 10_000, "stc:p_up=1/25": 100, "stc:p_up=1/100": 25, "stc:p_up=1/400": 9}
    for method in table4.METHODS:
        name = method.partition(":")[0]
        curve = curves.get(method, curves.get(name, (0.9,)))
        up = bytes_up.get(method.partition(",")[0], bytes_up.get(name, 10_000))
        finish(tmp_path, settings.experiment(method), *curve, up=up)
    (line,) = ARTEFACTS["fig10"].findings(settings, Results(tmp_path))
    assert f". {verdict} here. Iterations to 91 %, each compared with the FedAvg whose" in line
    assert f": STC p=1/25 2,500 (FedAvg n=100: {arrival}), STC p=1/100" in line
    assert "STC p=1/100 2,500 (FedAvg n=400: 3,750), STC p=1/400 2,500 (FedAvg n=400" in line
    part = Settings(TASK, methods=("stc",))
    assert ARTEFACTS["fig10"].findings(part, Results(tmp_path)) == []


@pytest.mark.parametrize(("cost", "verdict"), [(0.02, "Held"), (0.031, "Did not hold")])
def test_figure_4_reports_the_cost_of_sparse_downloads(tmp_path, cost, verdict):
    (line,) = find(tmp_path, "fig4", lambda cell: 0.9 - cost * (cell.method["p_down"] == 1 / 400))
    assert line.endswith(f"{verdict} here. The largest cost is {100 * cost:.1f} points.")


@pytest.mark.parametrize(("cost", "verdict"), [(0.004, "Held"), (0.05, "Did not hold")])
def test_figure_5_reports_the_cost_of_ternary_values(tmp_path, cost, verdict):
    def accuracy(cell):
        helped = cell.method["p_up"] == 1 / 25
        return 0.9 - (cost if not helped else -0.001) * (cell.method["name"] == "stc")

    (line,) = find(tmp_path, "fig5", accuracy)
    assert line.endswith(
        f"{verdict} here. At most {100 * cost:.1f} points worse, at most 0.1 points better."
    )


def test_figure_12_compares_sparsity_with_delay(tmp_path):
    def accuracy(cell):
        skewed = cell.environment.classes_per_client < 10
        return 0.9 - 0.05 * skewed * (cell.method.get("local_steps", 1) > 1)

    alike, better = find(tmp_path / "a", "fig12", accuracy)
    start = "Points of STC above FedAvg with n = 1/p:"
    assert f"sparsity and delay perform alike. Held here. {start} +0.0 (p = 1/5)" in alike
    assert f"comparable delay. Held here. {start} +5.0 (p = 1/5), +5.0 (p = 1/25)," in better
    (alone,) = find(tmp_path / "b", "fig12", lambda cell: 0.9, places=("non-iid",))
    assert f"Did not hold here. {start} +0.0" in alone


def test_figure_3_reports_the_growth_with_the_batch_size(tmp_path):
    settings = ARTEFACTS["fig3"].adjust(Settings("logistic-digits", quick=True))
    (line,) = ARTEFACTS["fig3"].findings(settings, Results(tmp_path))
    assert "batches of one class. Held here. Up to batches of 100, it grows by 0." in line
