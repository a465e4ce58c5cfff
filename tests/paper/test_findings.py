"""What the paper says of single figures: held or not, with numbers, and only if all is there."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedtern_paper import ARTEFACTS, Results, Settings, table4
from paper.fakes import finish

TASK = "logistic-mnist"


def say(out, name, accuracy, **chosen):
    """Pretend that every cell came to what ``accuracy`` says of it, and ask what that shows."""
    artefact = ARTEFACTS[name]
    settings = artefact.adjust(Settings(TASK, **chosen))
    for cell in {cell.digest: cell for cell in artefact.cells(settings)}.values():
        finish(out, cell, accuracy(cell))
    return artefact.findings(settings, Results(out))


def test_without_runs_nothing_is_said(tmp_path):
    for name in ("fig2", "fig4", "fig5", "fig10", "fig12"):
        settings = ARTEFACTS[name].adjust(Settings(TASK))
        assert ARTEFACTS[name].findings(settings, Results(tmp_path)) == []


def test_who_suffers_least_from_non_iid_data(tmp_path):
    def accuracy(cell, least="topk"):
        fewer = 10 - cell.environment.classes_per_client
        return 0.9 - fewer * (0.001 if cell.method["name"] == least else 0.02)

    (line,) = say(tmp_path / "a", "fig2", accuracy)
    assert line == (
        "The paper: top-k suffers least from non-iid data. Held here: two classes and one class"
        " cost signSGD δ=0.0002 16.0 and 18.0, FedAvg n=100 16.0 and 18.0 and top-k p=1/100 0.8 and"
        " 0.9 points."
    )
    part = ARTEFACTS["fig2"].adjust(Settings(TASK, places=("iid",)))
    assert ARTEFACTS["fig2"].findings(part, Results(tmp_path / "a")) == []
    (line,) = say(tmp_path / "b", "fig2", lambda cell: accuracy(cell, "signsgd"))
    assert "Did not hold here" in line


@pytest.mark.parametrize(
    ("accuracies", "arrival", "verdict"),
    [
        ((0.92, 0.92, 0.92, 0.92), "1,250", "Did not hold"),
        ((0.5, 0.92, 0.92, 0.92), "2,500", "Did not hold"),  # as many are not fewer
        ((0.5, 0.5, 0.92, 0.92), "3,750", "Held"),
        ((0.5, 0.5, 0.5, 0.5), "n.a.", "Held"),
    ],
)
def test_iterations_are_compared_where_as_much_is_sent(tmp_path, accuracies, arrival, verdict):
    settings = Settings(TASK)
    curves = {
        "stc": (0.5, 0.92, 0.92, 0.92),
        "fedavg": (0.5, 0.5, 0.92, 0.92),
        "fedavg:local_steps=100": accuracies,
    }
    # In each iteration FedAvg with n = 100 sends as much as STC at p = 1/25, with n = 400 as 1/100.
    bytes_up = {"fedavg": 10_000, "stc:p_up=1/25": 100, "stc:p_up=1/100": 25, "stc:p_up=1/400": 9}
    for method in table4.METHODS:
        name = method.partition(":")[0]
        curve = curves.get(method, curves.get(name, (0.9,)))
        up = bytes_up.get(method.partition(",")[0], bytes_up.get(name, 10_000))
        finish(tmp_path, settings.experiment(method), *curve, up=up)
    (line,) = ARTEFACTS["fig10"].findings(settings, Results(tmp_path))
    assert f". {verdict} here: to 91 %, beside the FedAvg that uploads most" in line
    assert f", STC p=1/25 2,500 (FedAvg n=100: {arrival}), STC p=1/100" in line
    assert "STC p=1/100 2,500 (FedAvg n=400: 3,750) and STC p=1/400 2,500 (FedAvg n=400" in line
    part = Settings(TASK, methods=("stc",))
    assert ARTEFACTS["fig10"].findings(part, Results(tmp_path)) == []


@pytest.mark.parametrize(("cost", "verdict"), [(0.02, "Held"), (0.031, "Did not hold")])
def test_what_sparse_downloads_cost(tmp_path, cost, verdict):
    (line,) = say(tmp_path, "fig4", lambda cell: 0.9 - cost * (cell.method["p_down"] == 1 / 400))
    assert line.endswith(f"{verdict} here: {100 * cost:.1f} at most.")


@pytest.mark.parametrize(("cost", "verdict"), [(0.004, "Held"), (0.05, "Did not hold")])
def test_what_ternary_values_cost(tmp_path, cost, verdict):
    def accuracy(cell):
        helped = cell.method["p_up"] == 1 / 25
        return 0.9 - (cost if not helped else -0.001) * (cell.method["name"] == "stc")

    (line,) = say(tmp_path, "fig5", accuracy)
    worse = f"{verdict} here: {100 * cost:.1f} points worse at most, 0.1 better."
    assert line.endswith(worse)


def test_sparsity_against_delay_iid_and_not(tmp_path):
    def accuracy(cell):
        skewed = cell.environment.classes_per_client < 10
        return 0.9 - 0.05 * skewed * (cell.method.get("local_steps", 1) > 1)

    alike, better = say(tmp_path / "a", "fig12", accuracy)
    assert "on iid data sparsity and delay do alike. Held here: STC is +0.0 (p = 1/5)" in alike
    assert "comparable delay. Held here: STC is +5.0 (p = 1/5), +5.0 (p = 1/25) and" in better
    (alone,) = say(tmp_path / "b", "fig12", lambda cell: 0.9, places=("non-iid",))
    assert "Did not hold here: STC is +0.0" in alone


def test_larger_batches_of_one_class_do_not_help(tmp_path):
    settings = ARTEFACTS["fig3"].adjust(Settings("logistic-digits", quick=True))
    (line,) = ARTEFACTS["fig3"].findings(settings, Results(tmp_path))
    assert "batches of one class. Held here: up to batches of 100 by 0." in line
