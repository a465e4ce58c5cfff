"""The page in a real browser: what a reader sees and clicks."""

from __future__ import annotations

import time

import pytest

from report.chromium import BROWSER, Chromium
from report.test_page import Elements

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="NO CHROMIUM ON PATH: the report was not looked at in a browser"
)
PLOTS = 7


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def downloads(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("downloads")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(path))
    return path


def fetched(path):
    limit = time.monotonic() + 20
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < limit, f"{path.name} was not downloaded"
        time.sleep(0.05)
    return path.read_bytes()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_all_plots_are_drawn_and_nothing_complains_or_overflows(browser, page, width, dark):
    browser.open(page, width, dark)
    assert browser.complaints == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.requests)
    drawn = "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('svg.main-svg'))"
    assert browser.run(f"{drawn}.length") == PLOTS
    assert browser.run("document.querySelectorAll('.plot .scatterlayer .trace').length") > 20
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.body.scrollWidth") <= width


def test_the_csv_buttons_give_the_embedded_tables(browser, page, downloads):
    browser.open(page, 1280)
    expected = Elements(page).data()["csv"]
    for name in ("results", "evaluations"):
        browser.run(f"document.querySelector('[data-csv={name}]').click()")
        assert fetched(downloads / f"fedtern-{name}.csv").decode() == expected[name]


def test_a_plot_is_saved_as_png_and_as_svg(browser, page, downloads):
    browser.open(page, 1280)
    for title, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        button = f'#traffic-up .modebar-btn[data-title="Save as {title}"]'
        browser.run(f"document.querySelector('{button}').click()")
        assert fetched(downloads / f"fedtern-traffic-up.{title.lower()}").startswith(start)
    assert browser.complaints == []


def test_a_click_in_a_legend_hides_the_lines_in_every_plot(browser, page):
    browser.open(page, 1280)
    visible = "document.querySelectorAll('#accuracy-down .scatterlayer .trace').length"
    before = browser.run(visible)
    spot = browser.run(
        "(() => { const e = document.querySelector('#accuracy-iterations .legendtoggle');"
        " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        where = {"x": spot[0], "y": spot[1], "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type=kind, **where)
    browser.wait(f"{visible} === {before - 2}")  # a line and its band


def test_another_split_can_be_chosen(browser, page):
    browser.open(page, 1280)
    shown = "JSON.stringify(document.getElementById('split').data[0].z)"
    first = browser.run(shown)
    browser.run(
        "(() => { const s = document.querySelector('[data-choice]'); s.selectedIndex = 1;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    browser.wait(f"{shown} !== '{first}'")


def test_the_theme_follows_the_readers(browser, page):
    paper = "document.getElementById('time')._fullLayout.paper_bgcolor"
    browser.open(page, 1280)
    light = browser.run(paper)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    browser.wait(f"{paper} !== '{light}'")
