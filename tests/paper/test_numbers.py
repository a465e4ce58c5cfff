"""Numbers in tables: ours and the paper's, targets, differences, congruence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from fedtern import Environment
from fedtern_paper import ARTEFACTS, Results, Settings, figure3, figure11, table4
from fedtern_paper.published import TRAFFIC
from fedtern_paper.settings import IID, NON_IID
from paper.fakes import finish

VGG = "vgg11s-cifar10"


def test_table_4_shows_bytes_until_the_target_beside_the_papers(tmp_path):
    settings = Settings(VGG)
    finish(tmp_path, settings.experiment("stc"), 0.5, 0.85, 0.83, up=3000, down=30_000)
    finish(tmp_path, settings.experiment("fedavg:local_steps=400"), 0.5, 0.8)
    made = ARTEFACTS["table4"].table(settings, Results(tmp_path))
    rows = {row["method"]: row for row in made.values}
    assert list(rows) == list(TRAFFIC)
    stc = rows["stc:p_up=1/400,p_down=1/400"]
    rounds = 20_000 * 2 // 3
    assert (stc["target"], stc["iterations_to_target"]) == (0.84, rounds)
    assert math.isclose(stc["up_mb"], 3e-3 * rounds)
    assert math.isclose(stc["down_mb_formula"], 15e-3 * rounds)
    assert (stc["paper_up_mb"], stc["paper_down_mb"]) == (183.9, 1839)
    assert (stc["accuracy"], stc["final_accuracy"]) == (0.85, 0.83)
    shown = {row["method"]: row for row in made.shown}
    assert shown["STC p=1/400"]["paper"] == "183.9 / 1,839"
    assert shown["FedAvg n=400"]["MB up / down"] == shown["FedAvg n=400"]["paper"] == "n.a."
    assert shown["uncompressed SGD"]["MB up / down"] == "–"
    assert shown["uncompressed SGD"]["paper"] == "36,696 / 36,696"
    assert made.notes[0] == "Target accuracy: 84 % (the paper's)."


def test_table_4_counts_the_seeds_that_reach_the_target(tmp_path):
    settings = Settings("logistic-mnist", seeds=2)
    for seed, accuracy in enumerate((0.9, 0.92)):
        finish(tmp_path, settings.experiment("stc", seed=seed), accuracy)
    made = ARTEFACTS["table4"].table(settings, Results(tmp_path))
    assert made.shown[-1]["iterations"] == "5,000 (1 of 2 seeds)"
    assert made.shown[-1]["paper"] == "–"
    assert "ours: the paper has none" in made.notes[0]


def test_an_unknown_task_has_a_target_below_uncompressed_training():
    assert table4.task_target("mine", 0.9) == 0.88
    assert table4.task_target("mine", None) == math.inf


def test_figure_11_runs_uncompressed_sgd_if_the_target_depends_on_it(tmp_path, monkeypatch):
    settings, none = Settings("logistic-digits"), Results(tmp_path)
    usual = figure11.cells(settings)
    monkeypatch.setattr(table4, "_OWN_TARGETS", {})
    (dense,) = [cell for cell in figure11.cells(settings) if cell not in usual]
    assert dense.method == {"name": "sgd"}
    shown = {row["shows"] for row in figure11.table(settings, none).shown}
    assert "until the target, iid" in shown
    finish(tmp_path, dense, 0.95)
    assert "until 93 %, iid" in {row["shows"] for row in figure11.table(settings, none).shown}


def test_sweeps_show_the_papers_accuracies_beside_ours(tmp_path):
    settings = Settings(VGG, values=(1,), places=("10/100",))
    place = Environment(classes_per_client=1)
    finish(tmp_path, settings.experiment("stc", place, momentum=0.0), 0.5, 0.4)
    made = ARTEFACTS["fig6"].table(settings, Results(tmp_path))
    (row,) = made.shown
    assert row["paper"] == "STC p=1/400: 53.2"
    assert row["STC p=1/400, m=0"] == "50.0 (40.0)"
    assert row["FedAvg n=400, m=0.9"] == "–"
    assert [r["paper"] for r in made.values] == [0.532, None, None, None, None, None]
    small = ARTEFACTS["fig7"].table(Settings(VGG, values=(1,)), Results(tmp_path))
    assert small.shown[1]["paper"] == "STC p=1/400: 63.8, FedAvg n=400: 39.2"
    few = ARTEFACTS["fig8"].table(Settings(VGG, values=(400,)), Results(tmp_path))
    assert few.shown[1]["paper"] == "STC p=1/400: 68.2, FedAvg n=400: 42.3"
    assert few.shown[1]["participation"] == "5/400"


def test_figure_11_uses_the_better_momentum(tmp_path):
    settings, place = Settings("logistic-mnist"), Environment(classes_per_client=2)
    for momentum, accuracy in ((0.0, 0.7), (0.9, 0.8)):
        finish(tmp_path, settings.experiment("stc", place, momentum=momentum), accuracy)
    first = figure11.table(settings, Results(tmp_path)).values[0]
    assert (first["shows"], first["method"], first["accuracy"]) == ("non-iid data", "stc", 0.8)


def test_figure_5_shows_differences_of_final_accuracies(tmp_path):
    artefact = ARTEFACTS["fig5"]
    settings = artefact.adjust(Settings("logistic-mnist", places=(NON_IID,)))
    place = Environment(clients=5, participation=1.0, classes_per_client=2)
    for method, accuracy in (("topk", 0.875), ("stc", 0.75)):
        cell = settings.experiment(f"{method}:p_up=1/25,p_down=1/400", place)
        finish(tmp_path, cell, 0.99, accuracy)
    made = artefact.table(settings, Results(tmp_path))
    found = [r for r in made.values if r["difference"] is not None]
    assert [(r["p_up"], r["p_down"], r["difference"]) for r in found] == [(1 / 25, 1 / 400, 0.125)]
    assert made.shown[0]["p down = 1/400"] == "12.5"


def test_figure_12_includes_fedavg_and_uncompressed_training():
    cells = ARTEFACTS["fig12"].cells(Settings("logistic-mnist", places=(IID,)))
    named = {(c.method["name"], c.method.get("local_steps", 1)) for c in cells}
    assert {("sgd", 1), ("fedavg", 5), ("fedavg", 100), ("stc", 1), ("stc", 100)} <= named
    assert len({c.digest for c in cells}) == 20


def test_curves_have_all_points_as_values_and_final_accuracies_as_text(tmp_path):
    settings = Settings("logistic-mnist", places=("1-class",), methods=("sgd",))
    place = Environment(clients=10, participation=1.0, classes_per_client=1)
    cell = settings.experiment("sgd", place, momentum=0.9)
    assert ARTEFACTS["fig2"].cells(settings) == [cell]
    finish(tmp_path, cell, 0.5, 0.75, up=2e3)
    made = ARTEFACTS["fig2"].table(settings, Results(tmp_path))
    assert [(r["iteration"], r["accuracy"]) for r in made.values] == [(2500, 0.5), (5000, 0.75)]
    assert made.values[-1]["up_bits"] == 8 * 2e3 * 5000
    assert made.shown == [
        {"where": "non-iid (1)", "method": "uncompressed SGD", "best": "75.0 %", "final": "75.0 %"}
    ]


def test_signs_agree_more_in_larger_batches_unless_each_has_one_class(tmp_path):
    settings = Settings("logistic-digits", quick=True)
    reported = []
    (found,) = figure3.measure(settings, Results(tmp_path), reported.append)
    assert sorted(reported) == reported
    assert 0 < reported[0] < reported[-1] <= 1
    assert found.sizes == [1, 2, 5, 10, 20, 50, 100]
    assert found.batches[0] == 40
    iid = found.alpha[IID]
    non_iid = found.alpha[NON_IID]
    assert iid[-1] > iid[0] + 0.15
    assert non_iid[-1] < iid[-1] - 0.1
    assert sum(found.bins[IID]) > 500
    (kept,) = tmp_path.glob(".congruence-*")
    before = kept.read_bytes()
    assert figure3.measure(settings, Results(tmp_path)) == [found]
    kept.unlink()
    figure3.measure(settings, Results(tmp_path))
    assert kept.read_bytes() == before
    rows = figure3.table(settings, Results(tmp_path)).values
    assert [r["iid"] for r in rows[:7]] == iid
    assert {r["paper_iid"] for r in rows} == {None}
    assert abs(sum(r["non_iid"] for r in rows[7:]) - 1) < 1e-9
    two = figure3.table(replace(settings, seeds=2), Results(tmp_path))
    assert len(list(tmp_path.glob(".congruence-*"))) == 2
    assert two.values[0]["iid_std"] > 0
    assert " ± " in two.shown[0]["iid"]


def test_figure_3_shows_the_papers_congruence_beside_ours(tmp_path, monkeypatch):
    fake = figure3.Congruence([1], [400], {IID: [0.5], NON_IID: [0.5]}, {IID: [1], NON_IID: [1]})
    monkeypatch.setattr(figure3, "measure", lambda *_: [fake])
    made = figure3.table(Settings("logistic-mnist"), Results(tmp_path))
    assert made.shown[0]["paper, iid"] == "0.51"
    assert made.values[0]["paper_iid"] == 0.51
