"""The live page in headless Chromium while a real run trains."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from fedtern.report.live import LiveServer, Watcher
from report.chromium import BROWSER, Chromium
from report.fake_runs import METHODS, config, evaluations, write_run

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="NO CHROMIUM ON PATH: the live page was not tested in a browser"
)

STC = METHODS[0][0]
HOSTILE = '</script><img src=x onerror="alert(2)">'
ROUND = "+document.getElementById('progress-text').textContent.replace(/,/g, '').match(/\\d+/)[0]"
# Before the first evaluation there is no plot.
DATA = "(document.getElementById('metric').data || [])"
POINTS = f"Math.max(0, ...{DATA}.map((trace) => trace.x.length))"
CONNECTION = "document.getElementById('connection').dataset.state"


@pytest.fixture
def browser(tmp_path):
    chromium = Chromium(tmp_path / "profile")
    yield chromium
    chromium.close()


@pytest.fixture
def training(tmp_path):
    """A run that trains until the test stops it, and the address of its live page."""
    options = ["--iterations", "1000000", "--evaluate-every", "20", "--workers", "0"]
    command = [sys.executable, "-m", "fedtern", "run", "--watch", *options]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    yield process, re.search(r"http://\S+", line)[0]
    process.kill()
    process.wait()
    process.stderr.close()


def test_the_page_follows_a_run_without_reloading(browser, training):
    process, url = training
    browser.call("Page.navigate", url=url)
    for width, dark in ((1280, False), (390, True)):
        browser.open(url, width, dark)
        browser.wait(f"{POINTS} > 1")
        points, number, requests = browser.run(POINTS), browser.run(ROUND), len(browser.requests)
        browser.wait(f"{POINTS} > {points} && {ROUND} > {number}")
        assert len(browser.requests) == requests
        assert browser.run("document.querySelectorAll('#metric .scatterlayer .trace').length") == 1
        assert browser.run("document.getElementById('eta').textContent").startswith("about ")
        assert browser.run("document.getElementById('focus-state').textContent") == "training"
        browser.wait("document.querySelectorAll('#traffic .scatterlayer .trace').length === 2")
        assert browser.run("document.documentElement.scrollWidth") <= width
    for name in ("Bytes up", "Bytes down", "Server bytes", "Seconds"):
        browser.run(
            f"[...document.querySelectorAll('#axis button')]"
            f".find((b) => b.textContent === '{name}').click()"
        )
        axis = "bytes" if "ytes" in name else "seconds"
        browser.wait(f"document.querySelector('#metric svg').textContent.includes('{axis}')")
        assert "NaN" not in browser.run("document.getElementById('plots').innerHTML")
    assert set(browser.requests) == {url, f"{url}events"}
    process.send_signal(2)
    browser.wait(f"{CONNECTION} === 'ended'")
    assert browser.run("document.getElementById('focus-state').textContent") == "stopped"
    assert process.wait(timeout=30) == 130
    assert browser.errors == []


def test_names_from_runs_are_shown_as_text(browser, tmp_path):
    method = {"name": HOSTILE, HOSTILE: HOSTILE}
    path = write_run(tmp_path / "run", config(method, task=HOSTILE), evaluations(STC, 0))
    with LiveServer(Watcher([path])) as server:
        browser.open(server.url, 1280)
        assert HOSTILE in browser.run("document.getElementById('focus-name').textContent")
        assert HOSTILE in browser.run("document.getElementById('runs').textContent")
        assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.errors == []


@pytest.mark.slow
def test_killing_the_training_ends_the_process_of_the_page(browser, training):
    process, url = training
    browser.open(url, 1280)
    process.kill()
    browser.wait(f"{CONNECTION} === 'ended'")
