"""The report page in headless Chromium: drawing, downloads and clicks."""

from __future__ import annotations

import time

import pytest

from report.chromium import BROWSER, Chromium
from report.test_page import Elements

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="NO CHROMIUM ON PATH: the report was not tested in a browser"
)
PLOTS = 9


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
    ink = "document.querySelector('#time .barlayer text').getAttribute('fill')"
    browser.open(page, 1280)
    light = browser.run(ink)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    browser.wait(f"{ink} !== '{light}'")


def move_mouse(browser, selector, x=0.5, y=0.5, kind="mouseMoved", button="none"):
    at = browser.run(
        f"(() => {{ const e = document.querySelector('{selector}');"
        " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        f" return [r.x + r.width * {x}, r.y + r.height * {y}]; }})()"
    )
    browser.call(
        "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button=button, clickCount=1
    )


def test_pointing_at_a_plot_shows_the_values_of_its_lines(browser, page):
    browser.open(page, 1280)
    move_mouse(browser, "#accuracy-iterations svg")
    browser.wait("!document.querySelector('#accuracy-iterations .tip').hidden")
    text = browser.run("document.querySelector('#accuracy-iterations .tip').textContent")
    assert "STC p=1/400: " in text
    assert "%" in text
    assert "NaN" not in text


def test_dragging_zooms_and_a_double_click_resets_the_zoom(browser, page):
    browser.open(page, 1280)
    ticks = "document.querySelector('#accuracy-iterations .axes').textContent"
    before = browser.run(ticks)
    for kind, x, button in (
        ("mousePressed", 0.3, "left"),
        ("mouseMoved", 0.5, "left"),
        ("mouseReleased", 0.6, "left"),
    ):
        move_mouse(browser, "#accuracy-iterations svg", x, 0.4, kind, button)
    browser.wait(f"{ticks} !== {before!r}")
    browser.run(
        "document.querySelector('#accuracy-iterations svg > rect')"
        ".dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    browser.wait(f"{ticks} === {before!r}")
