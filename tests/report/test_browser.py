"""The report page in headless Chromium: drawing, downloads and clicks."""

from __future__ import annotations

import time

import pytest

from report.chromium import BROWSER, Chromium
from report.test_page import Elements

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="NO CHROMIUM ON PATH: the report was not tested in a browser"
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


def read_download(path):
    deadline = time.monotonic() + 20
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < deadline, f"{path.name} was not downloaded"
        time.sleep(0.05)
    return path.read_bytes()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_all_plots_are_drawn_without_errors_requests_or_overflow(browser, page, width, dark):
    browser.open(page, width, dark)
    assert browser.errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in browser.requests)
    drawn = "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('svg.main-svg'))"
    assert browser.run(f"{drawn}.length") == PLOTS
    assert browser.run("document.querySelectorAll('.plot .scatterlayer .trace').length") > 20
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.body.scrollWidth") <= width


def test_the_csv_buttons_download_the_embedded_tables(browser, page, downloads):
    browser.open(page, 1280)
    expected = Elements(page).data()["csv"]
    for name in ("results", "evaluations"):
        browser.run(f"document.querySelector('[data-csv={name}]').click()")
        assert read_download(downloads / f"fedtern-{name}.csv").decode() == expected[name]


def test_a_plot_can_be_saved_as_png_and_as_svg(browser, page, downloads):
    browser.open(page, 1280)
    for title, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        button = f'#traffic-up .modebar-btn[data-title="Save as {title}"]'
        browser.run(f"document.querySelector('{button}').click()")
        assert read_download(downloads / f"fedtern-traffic-up.{title.lower()}").startswith(start)
    assert browser.errors == []


def test_a_click_on_a_legend_name_hides_its_lines_in_every_plot(browser, page):
    browser.open(page, 1280)
    visible = "document.querySelectorAll('#accuracy-down .scatterlayer .trace').length"
    before = browser.run(visible)
    position = browser.run(
        "(() => { const e = document.querySelector('#accuracy-iterations .legendtoggle');"
        " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        click = {"x": position[0], "y": position[1], "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type=kind, **click)
    browser.wait(f"{visible} === {before - 2}")  # a line and its band


def test_selecting_another_split_redraws_the_heat_map(browser, page):
    browser.open(page, 1280)
    shown = "JSON.stringify(document.getElementById('split').data[0].z)"
    first = browser.run(shown)
    browser.run(
        "(() => { const s = document.querySelector('[data-choice]'); s.selectedIndex = 1;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    browser.wait(f"{shown} !== '{first}'")


def test_plots_follow_the_colour_scheme_of_the_system(browser, page):
    background = "document.getElementById('time')._fullLayout.paper_bgcolor"
    browser.open(page, 1280)
    light = browser.run(background)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    browser.wait(f"{background} !== '{light}'")
