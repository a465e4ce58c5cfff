"""Tables and figures: their runs, their files and their command-line options."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from typer.testing import CliRunner

from fedtern import Environment
from fedtern.cli import app
from fedtern.runs import Experiment
from fedtern.training.tasks import TASKS
from fedtern_paper import ARTEFACTS, Artefact, Results, Settings, Table
from fedtern_paper.cli.artefacts import make
from fedtern_paper.outputs import write_pictures, write_table
from fedtern_paper.published import PAPER_TASKS
from fedtern_paper.settings import ALL_TASKS
from paper.fakes import finish, read_csv

TASK = "logistic-digits"
LEVELS = {"sgd": 0.95, "stc": 0.92, "topk": 0.93, "fedavg": 0.88, "signsgd": 0.8}


def digests(artefact, settings):
    chosen = ARTEFACTS[artefact]
    return {cell.digest for cell in chosen.cells(chosen.adjust(settings))}


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory):
    """Directory with finished runs of all artefacts for one task, with two seeds."""
    out, done = tmp_path_factory.mktemp("runs"), set()
    for artefact in ARTEFACTS.values():
        for cell in artefact.cells(artefact.adjust(Settings(TASK, seeds=2))):
            if cell.digest not in done:
                done.add(cell.digest)
                level = LEVELS.get(cell.method["name"], 0.9) - 0.01 * cell.seed
                finish(out, cell, 0.3, level, level - 0.02)
    return out


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("artefact", ARTEFACTS.values(), ids=ARTEFACTS)
def test_every_artefact_has_runs_for_every_task(artefact, task):
    cells = artefact.cells(artefact.adjust(Settings(task, quick=True)))
    assert {cell.task for cell in cells} <= {task}
    assert bool(cells) == (artefact.name != "fig3")


@pytest.mark.parametrize("artefact", ARTEFACTS.values(), ids=ARTEFACTS)
def test_every_artefact_writes_a_table_a_page_and_pictures(artefact, all_runs, tmp_path):
    settings = artefact.adjust(Settings(TASK, seeds=2, quick=artefact.name == "fig3"))
    results, stem = Results(all_runs), tmp_path / artefact.name
    pictures = write_pictures(artefact, settings, results, stem)
    assert [p.suffix for p in pictures] == [".png", ".svg"]
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    made = artefact.table(settings, results)
    table, page = write_table(made, stem, pictures=pictures)
    rows = read_csv(table)
    assert len(rows) == len(made.values) > 0
    assert f"]({artefact.name}.svg)" in page.read_text()
    if artefact.name == "fig3":
        assert " ± " in page.read_text()
    elif artefact.name != "table1":
        assert {row.get("seeds") for row in rows} == {"2"}
        assert " ± " in page.read_text()


@pytest.mark.parametrize("artefact", ARTEFACTS.values(), ids=ARTEFACTS)
def test_an_artefact_without_results_can_be_written(artefact, tmp_path):
    if artefact.name == "fig3":
        pytest.skip("it needs no runs")
    settings = artefact.adjust(Settings(TASK))
    assert write_pictures(artefact, settings, Results(tmp_path), tmp_path / "empty")
    made = artefact.table(settings, Results(tmp_path))
    assert all("–" in row.values() for row in made.shown)
    numeral = {"table1": "Table I,", "table4": "Table IV:"}.get(artefact.name)
    assert made.title.startswith(numeral or f"Figure {artefact.name.removeprefix('fig')}: ")


def test_pictures_have_a_row_per_task_and_stars_for_the_papers_numbers(tmp_path):
    figure, artefact = Figure(), ARTEFACTS["fig13"]
    settings = artefact.adjust(Settings(ALL_TASKS, values=(1,)))
    assert "vgg11s-cifar10, 20,000 iterations, seed 0; cnn-kws" in settings.note
    artefact.draw(settings, Results(tmp_path), figure)
    assert len(figure.axes) == 8
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["the paper's numbers"]
    bars = Figure()
    ARTEFACTS["table4"].draw(Settings("cnn-kws"), Results(tmp_path), bars)
    assert "stars: the paper's" in bars.axes[0].get_xlabel()


def test_the_title_of_a_picture_states_iterations_and_momentum(tmp_path):
    def headline(task, **chosen):
        figure = Figure()
        ARTEFACTS["fig13"].draw(Settings(task, values=(1,), **chosen), Results(tmp_path), figure)
        return " ".join(figure.get_suptitle().split())

    assert "10,000 iterations, seed 0 (dashed: momentum 0.9)" in headline("cnn-kws")
    short = headline("cnn-kws", iterations=2000, momentum=(0.0,))
    assert "2,000 of 10,000 iterations" in short
    assert "dashed" not in short
    assert "(dashed: momentum 0.5)" in headline("cnn-kws", momentum=(0.0, 0.5))
    assert "2,000 of 20,000 and 2,000 of 5,000 iterations" in headline("all", iterations=2000)


def test_the_papers_numbers_stand_beside_its_own_methods_only(tmp_path):
    asked = Settings("vgg11s-cifar10", values=(1,), methods=("stc", "stc:p_up=1/25"))
    rows = ARTEFACTS["fig6"].table(asked, Results(tmp_path)).values
    annotated = {row["method"] for row in rows if row["paper"] is not None}
    assert annotated == {"stc"}


def test_figures_share_runs():
    mnist = Settings()
    for single, several in (("fig6", "fig13"), ("fig8", "fig14"), ("fig7", "fig15")):
        assert digests(single, mnist) == digests(several, mnist)
    assert digests("fig9", mnist) == digests("fig16", mnist)
    assert digests("table4", mnist) == digests("fig10", mnist)
    sweeps = digests("fig6", mnist) | digests("fig7", mnist) | digests("fig8", mnist)
    assert digests("fig11", mnist) <= sweeps | digests("table4", mnist)
    assert len(digests("fig5", mnist) - digests("fig4", mnist)) == 18


def test_all_tasks_are_those_of_the_paper():
    every = digests("fig13", Settings(ALL_TASKS))
    assert every == {d for task in PAPER_TASKS for d in digests("fig6", Settings(task))}
    assert len(every) == 240


@pytest.mark.parametrize("task", ["cnn-kws", "lstm-fashion", "vgg11s-cifar10"])
def test_runs_of_table_4_are_those_of_fedtern_run(task):
    methods = ["sgd", "signsgd", "stc"]
    methods += [f"fedavg:local_steps={n}" for n in (25, 100, 400)]
    methods += [f"stc:p_up={p},p_down={p}" for p in ("1/25", "1/100")]
    plain = {Experiment.of(task, method).digest for method in methods}
    assert digests("table4", Settings(task)) == plain


def test_runs_of_figure_6_are_those_of_fedtern_run():
    methods = ("stc", "fedavg:local_steps=400", "signsgd")
    wanted = Settings(
        "cnn-kws", iterations=2000, values=(1, 2, 5, 10), places=("10/100",), momentum=(0,)
    )
    assert digests("fig6", wanted) == {
        Experiment.of("cnn-kws", m, Environment(classes_per_client=c), iterations=2000).digest
        for m in methods
        for c in (1, 2, 5, 10)
    }
    hard = Environment(clients=10, participation=1.0, classes_per_client=1)
    wanted = Settings(
        "vgg11s-cifar10", iterations=5000, values=(1,), places=("10/10",), momentum=(0,)
    )
    assert digests("fig6", wanted) == {
        Experiment.of("vgg11s-cifar10", m, hard, iterations=5000, momentum=0.0).digest
        for m in methods
    }
    # The task's default momentum gives the same runs, whether it is set or not.
    own = digests("fig6", replace(wanted, momentum=(0.9,)))
    assert own == {
        Experiment.of("vgg11s-cifar10", m, hard, iterations=5000).digest for m in methods
    }


def test_sparsity_figures_have_the_papers_share_of_iterations():
    for name, iterations in (("fig4", 16_000), ("fig5", 16_000), ("fig12", 10_000)):
        settings = ARTEFACTS[name].adjust(Settings("vgg11s-cifar10"))
        assert {c.iterations for c in ARTEFACTS[name].cells(settings)} == {iterations}
    assert ARTEFACTS["fig4"].adjust(Settings(iterations=7)).run_iterations == 7


def test_a_restricted_figure_prints_the_command_that_repeats_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = (
        f"reproduce fig6 --task {TASK} --iterations 20 --values 1,10 --place 10/10 --momentum 0"
        " --method stc --method signsgd --workers 1"
    )
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output
    assert "4/4" in result.stderr
    stem = tmp_path / "results" / f"fig6-{TASK}"
    rows = read_csv(stem.with_suffix(".csv"))
    assert [(r["method"], r["classes"]) for r in rows] == [
        ("stc", "1.0"), ("signsgd", "1.0"), ("stc", "10.0"), ("signsgd", "10.0"),
    ]  # fmt: skip
    for row in rows:
        assert 0 < float(row["final_accuracy"]) <= float(row["accuracy"]) <= 1
        assert (row["seeds"], row["place"], row["momentum"]) == ("1", "10/10", "0.0")
    page = stem.with_suffix(".md").read_text()
    command = (
        f"fedtern reproduce fig6 --task {TASK} --iterations 20 --values 1,10 --momentum 0"
        " --method stc --method signsgd --place 10/10"
    )
    assert command in page
    assert "79.5 % (10 of 10" in page
    again = CliRunner().invoke(app, command.split()[1:])
    assert "written: " in again.stdout
    assert again.stderr == ""


def test_a_figure_without_runs_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, f"reproduce fig3 --task {TASK} --quick".split())
    assert result.exit_code == 0, result.output
    page = (tmp_path / "results" / f"fig3-{TASK}.md").read_text()
    assert "iterations" not in page
    assert f"fedtern reproduce fig3 --task {TASK} --quick" in page
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [
        f".congruence-{TASK}-0-quick.json"
    ]


def test_all_runs_shared_cells_once_and_writes_every_artefact(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = Experiment.of(TASK, "sgd", iterations=10)
    finish(tmp_path / "runs", cell, 0.5)

    def table(settings, results):
        return Table(settings.task, [{"n": math.inf}], [{"n": "∞"}])

    two = {n: Artefact(n, n, lambda _: [cell], table) for n in ("one", "two")}
    monkeypatch.setattr("fedtern_paper.cli.artefacts.ARTEFACTS", two)
    result = CliRunner().invoke(app, f"reproduce all --task {TASK} --json".split())
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["artefacts"]
    assert [each["artefact"] for each in found] == ["one", "two"]
    assert found[0]["rows"] == [{"n": None}]
    plain = CliRunner().invoke(app, f"reproduce all --task {TASK}".split()).stdout
    assert plain.count("written: ") == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fig6", "--place", "10/1000"], "Unknown place '10/1000'. Did you mean '10/100'"),
        (["fig6", "--values", "1.5"], "classes per client must be whole numbers"),
        (["fig8", "--values", "3"], "numbers of clients must be whole numbers of at least 5"),
        (["fig9", "--values", "2"], "values of gamma must be in (0, 1], got 2"),
        (["fig2", "--momentum", "0,0.9"], "a curve has one momentum, got 2; choose one"),
        (["fig6", "--values", "few"], "expected numbers like 1,2,10, got 'few'"),
        (["fig6", "--task", "all"], "fig6 shows one task; choose one instead of all"),
        (["table4", "--values", "1"], "table4 cannot be restricted by --values, only by --method"),
        (["fig3", "--momentum", "0"], "fig3 cannot be restricted by --momentum, only by its task"),
        (["all", "--values", "1"], "`all` cannot be restricted by --values"),
        (["all", "--method", "stc"], "`all` cannot be restricted by --method"),
    ],
)
def test_invalid_restrictions_are_reported_in_one_line(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_shows_finished_runs_and_the_time_left(tmp_path):
    line = ["reproduce", "--list", "--task", TASK, "--out", str(tmp_path), "--workers", "1"]

    def rows():
        found = CliRunner().invoke(app, [*line, "--json"])
        assert found.exit_code == 0, found.output
        return {row["artefact"]: row for row in json.loads(found.stdout)["artefacts"]}

    before = rows()
    assert list(before) == [*ARTEFACTS, "all"]
    assert (before["table4"]["runs"], before["table4"]["done"]) == (8, 0)
    assert before["fig3"]["runs"] == 0
    parts = [row["runs"] for name, row in before.items() if name != "all"]
    assert max(parts) < before["all"]["runs"] < sum(parts)
    assert "a table" in CliRunner().invoke(app, line).stdout
    finish(tmp_path, Experiment.of(TASK, "sgd"), 0.9, seconds=1e4)  # a second for each step
    after = rows()
    assert after["table4"]["done"] == 1
    assert after["table4"]["seconds"] > after["table4"]["seconds_left"]
    assert after["table4"]["seconds_left"] > 100 * before["table4"]["seconds_left"] > 0
    shown = CliRunner().invoke(app, line).stdout
    assert "times from 1 finished run, and" in shown
    assert "about" in shown or "under 1 min" in shown


def test_a_part_of_a_figure_can_be_listed(tmp_path):
    part = ["--values", "1,2", "--place", "10/100", "--momentum", "0", "--out", str(tmp_path)]
    one = CliRunner().invoke(app, ["reproduce", "fig6", "--list", *part, "--json"])
    assert one.exit_code == 0, one.output
    (row,) = json.loads(one.stdout)["artefacts"]
    assert (row["artefact"], row["runs"]) == ("fig6", 6)
    every = CliRunner().invoke(app, ["reproduce", "--list", *part, "--iterations", "50"])
    assert every.exit_code == 0, every.output
    assert "Unknown place '10/100'. Available: non-iid, iid" in every.stdout
    assert "1 seed, 50 iterations; runs under" in every.stdout
    wrong = CliRunner().invoke(app, ["reproduce", "fig2", "--list", *part])
    assert (wrong.exit_code, wrong.stdout) == (1, "")


def test_replacing_the_page_of_another_command_is_reported(tmp_path):
    settings, runs = Settings(TASK, iterations=800, methods=("sgd",)), Results(tmp_path / "runs")
    for cell in ARTEFACTS["table4"].cells(replace(settings, seeds=2)):
        finish(runs.out, cell, 0.5)
    line = f"reproduce table4 --task {TASK} --iterations 800 --method sgd --out {runs.out}"

    def messages(*more):
        words = [*line.split(), "--results", str(tmp_path / "results"), *more]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        return result.stderr

    assert messages("--seeds", "2") == messages("--seeds", "2") == ""
    assert f"--task {TASK} --seeds 2 --iterations 800 --method sgd` had made; that" in messages()


def test_runs_that_are_longer_because_of_whole_rounds_are_named(tmp_path):
    def notes(artefact, iterations, **others):
        settings = Settings(TASK, iterations=iterations, **others)
        for cell in ARTEFACTS[artefact].cells(settings):
            finish(tmp_path / artefact / str(iterations), cell, 0.5)
        runs = Results(tmp_path / artefact / str(iterations))
        return make(ARTEFACTS[artefact], settings, runs, tmp_path).table.notes

    for artefact in ("table4", "fig10", "fig11"):
        (note,) = [n for n in notes(artefact, 500) if n.startswith("Rounds are not split")]
        assert note.endswith("longer: FedAvg n=400 for 800 iterations.")
    assert not any("not split" in note for note in notes("fig10", 800))
    short = notes("fig12", 50)
    assert any("STC p=1/100, n=100 for 100" in note for note in short)
    assert not any("n = 1/p" in note and "p = 1/100" in note for note in short)


def test_figure_2_states_its_momentum(tmp_path):
    for momentum, words in (((), "momentum 0.9."), ((0.0,), "momentum 0.")):
        settings = Settings(TASK, momentum=momentum)
        assert words in ARTEFACTS["fig2"].table(settings, Results(tmp_path)).notes[1]


@pytest.mark.parametrize("option", ["--out", "--results"])
def test_a_file_in_place_of_a_directory_is_an_error_before_anything_is_run(
    tmp_path, monkeypatch, option
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("")
    result = CliRunner().invoke(app, f"reproduce fig2 --task {TASK} {option} taken".split())
    assert result.stderr == f"fedtern: {option} must be a directory, but taken is a file\n"
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_json_output_contains_failed_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"reproduce fig6 --task {TASK} --iterations 5 --values 11 --place 10/10 --momentum 0"
    result = CliRunner().invoke(app, [*line.split(), "--method", "stc", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["artefacts"] == []
    (failed,) = found["failed"]
    assert "classes_per_client=11" in failed["run"]
    assert failed["error"] in result.stderr


def test_a_method_without_bars_keeps_its_place_in_the_picture(tmp_path):
    settings = Settings(TASK, methods=("sgd", "stc"))
    cells = ARTEFACTS["table4"].cells(settings)
    for cell in cells:
        finish(tmp_path, cell, 0.95 if cell is cells[0] else 0.1)
    for asked, marks in ((settings, True), (replace(settings, methods=("stc",)), False)):
        figure = Figure()
        ARTEFACTS["table4"].draw(asked, Results(tmp_path), figure)
        (axes,) = figure.axes
        low, high = axes.get_xlim()
        names = axes.get_xticklabels()
        assert low < 0
        assert high > len(names) - 1
        assert bool(len(axes.get_yticks())) == marks


def commands():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "reproduce.md"
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_of_the_how_to_page_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(
        "fedtern_paper.cli.command._run", lambda cells, *_, **__: asked.append(cells)
    )
    monkeypatch.setattr("fedtern_paper.cli.command._report_failures", lambda *_: None)
    monkeypatch.setattr("fedtern_paper.cli.command.make", lambda artefact, *_: artefact)
    monkeypatch.setattr("fedtern_paper.cli.command.show", lambda *_, **__: None)
    finish(tmp_path / "runs", Experiment.of(TASK, "stc"), 0.9)
    result = CliRunner().invoke(app, command[1:])
    assert result.exit_code == 0, result.output
    assert bool(asked and asked[0]) == (not {"--list", "--check"} & set(command))
