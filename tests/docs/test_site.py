"""The documentation site: it builds without warnings, its links work, and it is self-contained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("material", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
LARGEST_PAGE = 600_000  # bytes of the landing page with all that it loads
EXTERNAL = ("http://", "https://", "//")


@pytest.fixture(scope="module")
def hooks():
    spec = spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if find_spec("flwr") is None:
        pytest.skip("the reference includes the Flower plug-in")
    out = tmp_path_factory.mktemp("site")
    # Not --quiet, which hides warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    # Without the theme's advertisement.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return out


class Parts(HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(given["href"])


@cache
def parts(page: Path) -> Parts:
    return Parts(page.read_text(encoding="utf-8"))


def resolve(page: Path, site: Path, link: str) -> Path:
    path = unquote(urlsplit(link).path)
    return (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()


@pytest.mark.slow
def test_links_of_the_site_lead_to_pages_and_anchors_that_exist(site):
    broken, checked = [], 0
    for page in site.rglob("*.html"):
        for link in parts(page).links:
            if link.startswith((*EXTERNAL, "mailto:", "javascript:")):
                continue
            checked += 1
            target = resolve(page, site, link) if urlsplit(link).path else page
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(urlsplit(link).fragment)
            missing = not target.exists()
            if missing or (anchor and anchor not in parts(target).anchors | {"__skip"}):
                broken.append((str(page.relative_to(site)), link))
    assert broken == []
    assert checked > 5000


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        assert [name for name in parts(page).loaded if name.startswith(EXTERNAL)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_the_landing_page_is_light_and_shows_the_picture(site):
    page = site / "index.html"
    loaded = {resolve(page, site, name) for name in parts(page).loaded}
    assert site / "images" / "accuracy-bytes.svg" in loaded
    weight = page.stat().st_size + sum(path.stat().st_size for path in loaded)
    assert weight <= LARGEST_PAGE


@pytest.mark.slow
def test_pages_of_the_repository_are_part_of_the_site(site):
    for name in ("project/changelog", "reference/command-line", "tutorials/notebook"):
        assert (site / f"{name}.html").exists()
    notebook = (site / "tutorials" / "notebook.html").read_text()
    assert notebook.count('src="data:image/svg+xml;base64,') == 1
    assert notebook.index("data:image/svg") < notebook.index('<h2 id="the-trained-weights">')
    reference = (site / "reference" / "core.html").read_text()
    assert 'id="fedtern.core.protocol.server.Server.finish_round"' in reference
    assert "language-pycon" in reference  # examples in docstrings are code
    assert "mermaid" not in (site / "architecture.html").read_text()


def test_pages_that_are_not_in_the_navigation_are_added_to_it(hooks, monkeypatch, tmp_path):
    for name in ("how-to/new.md", "how-to/old.md", "security.md", "results/fig1.md"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(hooks, "ROOT", tmp_path)

    class Config:
        nav = [{"How-to guides": ["how-to/old.md"]}, {"Concepts": []}]  # noqa: RUF012

    assert hooks.on_config(Config).nav == [
        {"How-to guides": ["how-to/old.md", "how-to/new.md"]},
        {"Concepts": ["security.md"]},
    ]


def test_links_outside_the_documentation_lead_into_the_site(hooks):
    found = {
        link: hooks.site_path(hooks.repository_path("how-to/mqtt.md", link))
        for link in (
            "../../README.md", "../../CHANGELOG.md", "../../native/device.c", "data.md#splits",
            "../../examples/device/README.md", "../tutorials/notebook.ipynb", "../results/runs",
        )
    }  # fmt: skip
    assert list(found.values()) == [
        "index.md", "project/changelog.md", "source/native/device.c.md", "how-to/data.md",
        "source/examples/device/README.md", "tutorials/notebook.md", "source/docs/results/runs.md",
    ]  # fmt: skip
    assert hooks.repository_path("index.md", "https://example.org/x") is None
    assert hooks.repository_path("index.md", "#here") is None


def test_diagrams_become_graphs_and_tables(hooks):
    drawn = hooks.draw("```mermaid\ngraph TD\n    cli --> core\n    cli --> report\n```")
    assert drawn.count("<rect") == 3
    assert drawn.count("marker-end") == 2
    table = hooks.draw("```mermaid\nstateDiagram-v2\n    [*] --> OPEN\n    OPEN --> [*]: over\n```")
    assert table.splitlines()[2:] == ["| start |  | `OPEN` |", "| `OPEN` | over | end |"]
