"""The tutorials and the README agree with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fedtern.cli import app

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = [*sorted(TUTORIALS.glob("*.md")), ROOT / "README.md", ROOT / "docs" / "index.md"]
SHELL = re.compile(r"```sh\n(.*?)```", flags=re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
LONGEST_README = 75  # lines: one screen of text, and a picture


def commands(page: Path) -> list[str]:
    """Return the fedtern commands in the shell blocks of a page."""
    text = "\n".join(SHELL.findall(page.read_text())).replace("\\\n", " ")
    lines = [re.sub(r" #.*", "", line) for line in text.splitlines()]
    return [found for line in lines for found in re.findall(r"\bfedtern \w[^&|]*", line)]


def test_commands_of_the_tutorials_and_their_options_exist():
    pytest.importorskip("torch")
    group = typer.main.get_command(app)
    context = group.make_context("fedtern", [], resilient_parsing=True)
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 10
    for command in found:
        _, *words = command.split()
        target, parent = group, context
        while hasattr(target, "list_commands"):
            _, target, words = target.resolve_command(parent, words)
            parent = target.make_context("fedtern", [], resilient_parsing=True)
        known = {option for parameter in target.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, command


def test_the_own_model_of_the_tutorial_is_trained_and_reported(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    page = TUTORIALS / "your-own-model.md"
    example, kept = PYTHON.findall(page.read_text())
    lines = [line[4:] for line in example.splitlines() if line.startswith((">>> ", "... "))]
    setup = "\n".join(lines[: next(i for i, line in enumerate(lines) if "simulation =" in line)])
    exec(setup + "\n" + kept, {})
    (report,) = [command for command in commands(page) if "report" in command]
    assert CliRunner().invoke(app, report.split()[1:]).exit_code == 0
    text = (tmp_path / "report.html").read_text()
    assert "STC" in text


@pytest.mark.slow
def test_the_notebook_runs_and_compression_saves_nine_tenths_of_the_bytes():
    for module in ("torch", "sklearn", "matplotlib", "ipykernel"):
        pytest.importorskip(module)
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    path = TUTORIALS / "notebook.ipynb"
    notebook = nbformat.read(path, as_version=4)
    recorded = printed(notebook)
    client(notebook, timeout=300, kernel_name="python3").execute()
    found = printed(notebook)
    assert len(found) == len(recorded) == 2
    for (accuracy, size), (accuracy_then, size_then) in zip(found, recorded, strict=True):
        assert accuracy == pytest.approx(accuracy_then, abs=2)  # another CPU may round differently
        assert size == pytest.approx(size_then, rel=0.05)
    assert found[0][1] < found[1][1] / 10
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)


def printed(notebook) -> list[tuple[float, float]]:
    """Return accuracy and MB of each method that a notebook prints."""
    texts = [o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", ())]
    pairs = re.findall(r"accuracy ([\d.]+)%, ([\d.]+) MB", "".join(texts))
    return [(float(accuracy), float(size)) for accuracy, size in pairs]


def test_the_notebook_is_small_and_has_outputs_without_errors():
    path = TUTORIALS / "notebook.ipynb"
    assert path.stat().st_size < 100_000
    cells = json.loads(path.read_text())["cells"]
    kinds = {output["output_type"] for cell in cells for output in cell.get("outputs", ())}
    assert "stream" in kinds
    assert "error" not in kinds


def test_the_picture_has_the_numbers_of_the_recorded_runs():
    pytest.importorskip("matplotlib")
    from benchmarks.accuracy_bytes import CURVES, PICTURE, curves

    picture = PICTURE.read_text()
    readme, landing = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    for name, points in curves().items():
        size, accuracy = points[-1]
        assert f"{CURVES[name][0]}: {100 * accuracy:.0f} %, {size:.3g} MB" in picture
        if name in ("stc", "sgd"):
            for page in (readme, landing):
                assert f"{100 * accuracy:.0f} % with {size:.3g} MB" in page


def test_the_readme_is_one_screen():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= LONGEST_README
    assert sum(line.startswith("![") for line in lines) == 1
