"""The report page as a file: content, escaping, errors."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedtern.core.errors import FedternError
from fedtern.core.extras import install_command
from fedtern.report import load_run, write_report
from fedtern.report.groups import group_runs
from fedtern.report.targets import target_table
from report.fake_runs import METHODS, config, evaluations, write_run

graph_objects = pytest.importorskip("plotly.graph_objects")

STC = METHODS[0][0]
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


class Elements(HTMLParser):
    """The elements, attributes and texts of an HTML page, in document order."""

    def __init__(self, path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self.elements[-1][0] if self.elements else "", data))

    def data(self):
        """Return the JSON data embedded in the page."""
        found = [i for i, (_, attrs) in enumerate(self.elements) if attrs.get("id") == "data"]
        assert len(found) == 1
        return json.loads(next(text for tag, text in self.texts if text.startswith('{"figures"')))


def rows(text):
    return list(csv.DictReader(text.splitlines()))


def test_the_page_loads_no_external_resource(page):
    found = Elements(page)
    for tag, attrs in found.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            assert (attrs.get(name) or "data:").startswith(("data:", "#")), (tag, attrs)
    assert "@import" not in page.read_text().partition("</style>")[0]
    policy = [a["content"] for t, a in found.elements if a.get("http-equiv")]
    assert policy[0].startswith("default-src 'none'")


def test_the_page_is_small(page):
    assert page.stat().st_size < 400_000  # eight runs of fifty evaluations; the limit is 1.5 MB


def test_a_page_about_a_hundred_runs_has_less_than_two_megabytes(tmp_path):
    methods = [{"name": "fedavg", "local_steps": steps} for steps in range(1, 26)]
    rows = {seed: evaluations(STC, seed) for seed in range(4)}
    runs = [
        write_run(tmp_path / f"{method['local_steps']}-{seed}", config(method, seed), rows[seed])
        for method in methods
        for seed in rows
    ]
    page = write_report(runs, tmp_path / "page.html")
    assert page.stat().st_size < 2_000_000


def test_each_run_has_a_table_row_and_a_details_block(page):
    text = page.read_text()
    table = text.partition("<tbody>")[2].partition("</tbody>")[0]
    for _, label, *_ in METHODS:
        assert table.count(f"{label}</th>") == 2
        assert text.count(f"<summary>{label}, seed ") == 2
    assert text.count("fedtern run logistic-mnist --method stc --seed 1") >= 1


def test_the_summary_gives_accuracy_traffic_and_compression_ratio(page):
    summary = page.read_text().partition('class="summary">')[2].partition("</p>")[0]
    assert "STC p=1/400 reached 9" in summary
    assert "246 kB up and 1.86 MB down: 638 and 84.4 times less" in summary


def test_the_evaluations_csv_equals_the_recorded_metrics(page, runs):
    found = rows(Elements(page).data()["csv"]["evaluations"])
    expected = [evaluation for path in runs for evaluation in load_run(path).evaluations]
    assert len(found) == len(expected)
    for row, evaluation in zip(found, expected, strict=True):
        seconds = evaluation["seconds"]
        assert {k: float(row[k]) for k in evaluation if k != "seconds"} == {
            k: v for k, v in evaluation.items() if k != "seconds"
        }
        assert {k: float(row[f"seconds.{k}"]) for k in seconds} == seconds


def test_the_results_csv_holds_the_last_evaluation_of_each_run(page, runs):
    found = rows(Elements(page).data()["csv"]["results"])
    for row, path in zip(found, runs, strict=True):
        run = load_run(path)
        assert row["run"] == run.digest
        assert float(row["final_accuracy"]) == run.last["accuracy"]
        assert float(row["best_accuracy"]) == max(e["accuracy"] for e in run.evaluations)
        assert float(row["up_bytes"]) == run.last["up_bytes_mean"]
        assert float(row["total_down_bytes"]) == run.last["down_bytes"]
        assert float(row["seconds"]) == pytest.approx(sum(run.last["seconds"].values()))


def test_every_figure_is_a_valid_plotly_figure(page):
    figures = Elements(page).data()["figures"]
    assert list(figures) == [
        *("accuracy-iterations", "accuracy-up", "accuracy-down"),
        *("loss-iterations", "loss-server"),
        *("traffic-up", "traffic-down", "time", "split"),
    ]
    for figure in figures.values():
        graph_objects.Figure({"data": figure["data"], "layout": figure["layout"]})


def test_a_split_shared_by_several_runs_is_plotted_once(runs, tmp_path):
    data = Elements(write_report(runs, tmp_path / "all.html")).data()
    assert len(data["figures"]["split"]["choices"]) == 2  # one for each seed
    data = Elements(write_report(runs[::2], tmp_path / "one.html")).data()
    assert data["figures"]["split"]["choices"] == []


def test_strings_from_runs_are_escaped(tmp_path):
    hostile = config(STC, task=HOSTILE, digest=HOSTILE, command=HOSTILE, seed=HOSTILE)
    hostile |= {"method": {"name": HOSTILE, HOSTILE: HOSTILE}, HOSTILE: {HOSTILE: [HOSTILE]}}
    measured = [{**evaluation, HOSTILE: HOSTILE} for evaluation in evaluations(STC, 0)]
    measured[-1] = {**measured[-1], "seconds": {HOSTILE: 1.0}}
    path = write_run(tmp_path / "run", {**hostile, "seed": 0}, measured)
    (path / "config.json").write_text(json.dumps(hostile))
    (path / "split.json").write_text(json.dumps({"classes": [HOSTILE], "counts": [[1], [2]]}))
    found = Elements(write_report([path], tmp_path / "report.html"))
    harmless = Elements(
        write_report([write_run(tmp_path / "x", config(STC), measured)], tmp_path / "y.html")
    )
    assert "img" not in {tag for tag, _ in found.elements}
    assert not any("onerror" in attrs for _, attrs in found.elements)
    scripts = [sum(tag == "script" for tag, _ in page.elements) for page in (found, harmless)]
    assert scripts[0] == scripts[1]
    assert "<img" not in json.dumps(found.data()["figures"]["time"])


@pytest.mark.parametrize("torn", ["", '{"iteration": 1'])
def test_a_run_without_evaluations_gives_a_page_without_result_plots(tmp_path, torn):
    path = write_run(tmp_path / "run", config(STC), [], torn)
    page = write_report([path], tmp_path / "deep" / "report.html")
    assert "STC p=1/400 has no evaluation yet" in page.read_text()
    assert list(Elements(page).data()["figures"]) == ["split"]


def test_a_diverged_run_is_plotted_without_its_nan_values(tmp_path):
    measured = evaluations(STC, 0)
    measured[-1] = {**measured[-1], "loss": float("nan"), "accuracy": float("nan")}
    page = write_report([write_run(tmp_path / "r", config(STC), measured)], tmp_path / "r.html")
    data = Elements(page).data()
    assert len(data["figures"]["accuracy-iterations"]["data"][0]["x"]) == len(measured) - 1
    assert rows(data["csv"]["evaluations"])[-1]["loss"] == "nan"


def test_a_run_with_a_minimal_configuration_gives_a_page(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text('{"method": {"name": "stc"}}')
    (path / "metrics.jsonl").write_text('{"iteration": 1}\n')
    assert "STC" in write_report([path], tmp_path / "r.html").read_text()


def test_an_unwritable_target_is_an_error_and_leaves_no_files(runs, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    for out, message in (
        ("taken", r"taken is a directory; name a file, for example .*taken/report.html"),
        ("file/report.html", r"Cannot write .*report.html: .*file is not a directory"),
    ):
        with pytest.raises(FedternError, match=message):
            write_report(runs, tmp_path / out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "taken"]


def test_a_run_path_with_undecodable_bytes_gives_a_page(tmp_path):
    run = write_run(tmp_path / os.fsdecode(b"r\xff"), config(STC), evaluations(STC, 0))
    page = write_report([run], tmp_path / "page.html").read_text()
    assert r"r\udcff" in page
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]


def test_a_directory_given_twice_counts_as_one_run(runs, tmp_path):
    page = write_report([runs[0], str(runs[0])], tmp_path / "r.html")
    assert page.read_text().count("<summary>") == 1


def test_the_same_runs_give_identical_pages(runs, page, tmp_path):
    assert write_report(runs, tmp_path / "again.html").read_bytes() == page.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.html"]


def test_a_missing_library_is_an_error_with_the_install_command(runs, tmp_path, monkeypatch):
    missing = "jinja2"
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(FedternError, match=f"{missing}.*{re.escape(install_command('report'))}"):
        write_report(runs, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_the_draft_of_a_page_is_named_after_its_process(tmp_path, monkeypatch):
    # Two comparisons in one directory may write the same page at the same time.
    drafts = []

    def replace(path, target):
        drafts.append(path.name)
        return os.rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_report([write_run(tmp_path / "run", config(STC), evaluations(STC, 0))], tmp_path / "page")
    assert drafts == [f"page.{os.getpid()}.draft"]


def cards(page):
    found = Elements(page)
    texts = [text.strip() for tag, text in found.texts if tag in ("dt", "dd")]
    return [text for text in texts if text]


def test_the_headline_shows_quality_with_its_spread_and_both_kinds_of_bytes(page, runs):
    found = cards(page)
    assert [found[i] for i in (0, 3, 6, 9)] == [
        *("Accuracy", "Per client", "At the server", "Smaller than dense")
    ]
    last = [load_run(path).last for path in runs[:2]]  # STC, which has the fewest bytes
    accuracies = [100 * row["accuracy"] for row in last]
    mean, deviation = statistics.fmean(accuracies), statistics.stdev(accuracies)
    assert found[1:3] == [f"{mean:.1f} ± {deviation:.1f} %", "mean of 2 seeds"]
    assert found[4:6] == ["2.11 MB", "246 kB up, 1.86 MB down"]
    assert found[7:9] == ["20.9 MB", "2.45 MB received, 18.5 MB sent"]
    assert found[10].endswith(" ×")
    assert "fewest bytes per client within 2 percentage points" in page.read_text()


def test_the_headline_is_the_cheapest_configuration_near_the_best(tmp_path):
    runs = [
        write_run(tmp_path / method["name"], config(method), evaluations(method, 0))
        for method, *_ in METHODS
    ]
    text = write_report(runs, tmp_path / "page.html").read_text()
    assert '<p class="headline"><strong>STC p=1/400</strong>' in text


def test_bytes_until_a_target_are_those_of_the_first_evaluation_that_reaches_it(tmp_path):
    rows = [
        {
            "iteration": i,
            "round": i,
            "accuracy": accuracy,
            "loss": 1.0,
            "up_bytes_mean": 1000.0 * i,
            "down_bytes_mean": 2000.0 * i,
            "up_bytes": 10_000 * i,
            "down_bytes": 20_000 * i,
            "dense_bytes": 10**6 * i,
        }
        for i, accuracy in enumerate([0.5, 0.79, 0.81, 0.7, 0.95, 1.0], start=1)
    ]
    other = [{**row, "accuracy": 0.85} for row in rows]
    runs = [
        load_run(write_run(tmp_path / "a", config(STC), rows)),
        load_run(write_run(tmp_path / "b", config(METHODS[3][0]), other)),
    ]
    table = target_table(group_runs(runs))
    assert table.targets == ("80.0 %", "90.0 %", "97.0 %")
    assert table.rows[0].cells[:6] == (
        "3.00 kB",
        "6.00 kB",
        "90.0 kB",
        *("5.00 kB", "10.0 kB", "150 kB"),
    )
    assert table.rows[1].cells[:4] == ("1.00 kB", "2.00 kB", "30.0 kB", "not reached")


def test_seeds_that_miss_a_target_are_counted(tmp_path):
    def run(seed, accuracy):
        row = {**evaluations(STC, 0)[-1], "accuracy": accuracy}
        return load_run(write_run(tmp_path / str(seed), config(STC, seed), [row]))

    table = target_table(group_runs([run(0, 0.9), run(1, 0.5)]))
    assert any("(1 of 2 seeds)" in cell for cell in table.rows[0].cells)


def test_each_task_has_its_own_section(tmp_path):
    runs = [
        write_run(tmp_path / task, config(STC, task=task), evaluations(STC, 0))
        for task in ("logistic-mnist", "cnn-kws")
    ]
    page = write_report(runs, tmp_path / "page.html")
    text = page.read_text()
    assert text.count('class="task-name"') == 2
    assert text.count("Bytes until a target</h2>") == 2
    figures = Elements(page).data()["figures"]
    names = {name.partition("-")[2] for name in figures if name.startswith("task1-")}
    assert names == {name.partition("-")[2] for name in figures if name.startswith("task0-")}
    assert all(f'id="{name}"' in text for name in figures)
    assert [len(figures[f"task{i}-accuracy-iterations"]["data"]) for i in (0, 1)] == [1, 1]


def test_the_environment_names_values_that_differ(tmp_path):
    for name, cpu in (("a", "EPYC"), ("b", "EPYC"), ("c", "Xeon")):
        settings = config(STC, ord(name)) | {"machine": {"cpu": cpu, "numpy": "2.4.6"}}
        write_run(tmp_path / name, settings, evaluations(STC, 0))
    text = write_report([tmp_path / name for name in "abc"], tmp_path / "page.html").read_text()
    assert "<td>EPYC (2 runs), Xeon (1 runs)</td>" in text
    assert "<td>2.4.6</td>" in text
