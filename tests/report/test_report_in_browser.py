"""Claims about the page as a reader sees it, in headless Chromium."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arena_by_formula import plan_of, played, run
from axe import faults
from needs import in_chromium, needs
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.together import write_together
from perfeds2.report.arena import write_arena
from perfeds2.report.run import write_report
from perfeds2.studies.arena_plan import USUAL

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = in_chromium
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
LINES = "#{} .scatterlayer .trace path.js-line"  # means, and the edges of their bands
DARK = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
HAS_INK = """
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
    return [...document.querySelectorAll(".chart")].every((chart) => chart._fullLayout.font.color === ink)
"""  # whether every chart is drawn in the theme's colours
EVIL = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 1'><b id=injected>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    assert CHROMIUM is not None
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(compared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("page") / "run"
    shutil.copytree(compared, copy)
    return write_report(copy)


@pytest.fixture(scope="module")
def beside(page: Path, make_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two folders."""
    other = shutil.copytree(
        make_run(algorithms=[("PerFedS2", "PerFed", "S2")], seeds=[0, 1, 2]), tmp_path_factory.mktemp("other") / "other"
    )
    return write_together([page.parent, other], tmp_path_factory.mktemp("beside"))[0]


def open_page(browser: webdriver.Chrome, page: Path, width: int = 1200) -> None:
    set_width(browser, width)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # forget what other pages logged
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.drawn") == "yes")


def set_width(browser: webdriver.Chrome, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def see_page(browser: webdriver.Chrome, page: Path, width: int = 1200) -> None:
    """Open a page unless it is open already, as an earlier test opened and left it: drawing it takes seconds."""
    if (browser.current_url, browser.execute_script("return innerWidth")) != (page.as_uri(), width):
        open_page(browser, page, width)


def count(browser: webdriver.Chrome, selector: str) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, selector))


def test_every_chart_draws_and_nothing_complains_or_leaves_the_file(browser: webdriver.Chrome, page: Path):
    open_page(browser, page)
    for chart in ("test-accuracy-personal", "train-loss-personal", "test-accuracy", "train-loss"):
        assert count(browser, LINES.format(chart)) == 9 * 3  # nine means, each between the edges of its band
        assert count(browser, f"#{chart} path.js-fill") == 9
    for number in range(3):  # synchronous, semi-synchronous and asynchronous
        assert count(browser, f"#activity-{number} .barlayer .point path") > 30
        assert count(browser, f"#activity-{number} .scatterlayer path.point") > 6
    assert count(browser, LINES.format("staleness")) == 3
    assert count(browser, "#shares .scatterlayer path.point") == 3 * 12
    assert count(browser, LINES.format("ues")) == 9
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_no_button_offers_to_upload_the_data(browser: webdriver.Chrome, page: Path):
    see_page(browser, page)
    titles = {b.get_attribute("data-title") for b in browser.find_elements(By.CSS_SELECTOR, "#train-loss .modebar-btn")}
    assert titles == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}


def test_a_click_on_a_name_hides_its_lines_and_another_brings_them_back(browser: webdriver.Chrome, page: Path):
    see_page(browser, page)
    button = browser.find_element(By.CSS_SELECTOR, ".legend button:nth-child(6)")
    assert button.text == "PerFedS2"
    for expected, pressed in ((8 * 3, "false"), (9 * 3, "true")):
        time.sleep(0.6)  # two quick clicks are a double click
        button.click()
        for chart in ("test-accuracy-personal", "train-loss"):
            WebDriverWait(browser, 60).until(lambda b, c=chart, n=expected: count(b, LINES.format(c)) == n)
        assert button.get_attribute("aria-pressed") == pressed


def test_bands_are_switched_off_and_on_from_the_keyboard(browser: webdriver.Chrome, page: Path):
    see_page(browser, page)
    button = browser.find_element(By.CSS_SELECTOR, "button[data-bands]")
    browser.execute_script("arguments[0].focus()", button)
    for key, lines, fills, pressed in ((Keys.ENTER, 9, 0, "false"), (Keys.SPACE, 9 * 3, 9, "true")):
        browser.switch_to.active_element.send_keys(key)
        WebDriverWait(browser, 60).until(lambda b, n=lines: count(b, LINES.format("train-loss")) == n)
        assert count(browser, "#train-loss path.js-fill") == fills
        assert button.get_attribute("aria-pressed") == pressed


def test_a_dark_reader_gets_light_text(browser: webdriver.Chrome, page: Path):
    see_page(browser, page)
    ink = "return document.getElementById('train-loss')._fullLayout.font.color"
    light = browser.execute_script(ink)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", DARK)
    try:
        WebDriverWait(browser, 60).until(lambda b: b.execute_script(ink) != light)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_hidden_line_keeps_its_band_hidden_whatever_the_switch_says(browser: webdriver.Chrome, page: Path):
    see_page(browser, page)
    browser.find_element(By.CSS_SELECTOR, ".legend button:nth-child(1)").click()
    for fills in (0, 8):
        browser.find_element(By.CSS_SELECTOR, "button[data-bands]").click()
        WebDriverWait(browser, 60).until(lambda b, n=fills: count(b, "#train-loss path.js-fill") == n)


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_never_scrolls_sideways(browser: webdriver.Chrome, page: Path, width: int):
    see_page(browser, page, width)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    assert browser.execute_script("return document.querySelector('#activity-0 .main-svg').clientWidth") <= width
    if width == 390:  # the table is wider than a phone, and scrolls in its own box
        assert browser.execute_script(
            "const b = document.querySelector('.scroll'); return b.scrollWidth > b.clientWidth"
        )


def test_a_phone_shows_the_accuracies_first(browser: webdriver.Chrome, page: Path):
    see_page(browser, page, 390)
    top = "return [...document.querySelectorAll('.chart')].map(c => [c.id, c.getBoundingClientRect().top])"
    places = sorted(browser.execute_script(top), key=lambda each: each[1])
    assert [name for name, _ in places][:3] == ["test-accuracy-personal", "test-accuracy", "train-loss-personal"]
    assert places[0][1] < 900  # within the first screen and a bit: notes come later
    heads = [head.text for head in browser.find_elements(By.CSS_SELECTOR, "thead th")]
    assert heads[1].lower().startswith("test accuracy")
    shown = "const c = document.querySelectorAll('tbody tr td')[0].getBoundingClientRect(); return c.right <= 390"
    assert browser.execute_script(shown)  # without a finger


@needs("axe")
@pytest.mark.parametrize("name", ["page", "beside"])
def test_axe_finds_no_fault(browser: webdriver.Chrome, request: pytest.FixtureRequest, name: str):
    see_page(browser, request.getfixturevalue(name), 390)
    assert rules_broken(browser, dark=False) == []
    if name == "beside":
        return  # its colours are those of the other page, and a width changes none
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", DARK)
    try:
        WebDriverWait(browser, 60).until(lambda b: b.execute_script(HAS_INK))
        assert rules_broken(browser, dark=True) == []
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def rules_broken(browser: webdriver.Chrome, *, dark: bool) -> list[tuple[str, list[str]]]:
    found = faults(browser, dark=dark)
    return [(fault["id"], [node["target"] for node in fault["nodes"]]) for fault in found]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an arena of twelve methods with six settings each."""
    folder = tmp_path_factory.mktemp("arena") / "crowded"
    run(folder, plan_of(methods=list(USUAL), tries=0), on=played(lambda name, *_: 0.5 + len(name) / 50))
    said = json.loads((folder / "arena.json").read_text())
    for method in said["bouts"][0]["methods"]:
        method["settings"] = dict.fromkeys(
            ("beta", "alpha", "server_step", "local_steps", "stale_power", "pull"), 0.0123
        )
    (folder / "arena.json").write_text(json.dumps(said))
    return write_arena(folder)[0]


@pytest.mark.parametrize("name", ["page", "beside", "crowded"])
def test_tables_fit_a_screen_of_1280(browser: webdriver.Chrome, request: pytest.FixtureRequest, name: str):
    page = request.getfixturevalue(name)
    if browser.current_url != page.as_uri():
        open_page(browser, page, 1280)
    set_width(browser, 1280)
    wide = "return [...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth).length"
    assert browser.execute_script("return innerWidth") == 1280
    assert browser.execute_script(wide) == 0


def test_a_hostile_name_is_shown_and_not_run(browser: webdriver.Chrome, make_run):
    algorithms = [(EVIL, EVIL, "S2"), ("PerFedS2", "PerFed", "S2")]
    page = write_report(make_run(algorithms=algorithms, seeds=[0], spec=EVIL, notes=[EVIL], ues=6))
    open_page(browser, page, 390)
    assert browser.execute_script("return window.injected") is None
    assert count(browser, "#injected, img") == 0
    names = [button.text for button in browser.find_elements(By.CSS_SELECTOR, ".legend button")]
    assert names.count(EVIL) == 2  # of the curves, and of the UEs
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
