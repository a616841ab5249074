"""Is the site whole? Built strictly from the documents and the code, then read as files and, in headless Chromium, as a reader does."""

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from axe import faults, wait_for_colours
from needs import in_chromium, needs
from typer.main import get_command

import perfeds2
from perfeds2.cli import app
from perfeds2.spec.fields import own_settings, settings
from perfeds2.spec.methods import listed_methods

ROOT = Path(__file__).parent.parent
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
NUMBER = re.compile(r"-?\d+\.?\d*")
sys.path.insert(0, str(ROOT / "docs" / "site"))


@dataclass
class Read(HTMLParser):
    """What a page holds: its anchors, its links, what it loads, its text and its equations."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    equations: int = 0
    inside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.equations += tag == "math"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given:
            self.loaded.append(given[LOADS[tag]])
        if tag == "link" and given.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(given.get("href", ""))
        if tag in ("code", "script", "style"):
            self.inside.append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.inside[-1] += data
        self.texts.append(data)

    def updatepos(self, _: int, j: int) -> int:
        """Count no lines, which takes long and is not needed."""
        return j

    @cached_property
    def text(self) -> str:
        return "".join(self.texts)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("code", "script", "style") and self.inside:
            self.codes.add(self.inside.pop())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``make site`` builds it."""
    folder, said = tmp_path_factory.mktemp("built"), io.StringIO()
    make = importlib.import_module("make")
    with contextlib.redirect_stderr(said):
        assert make.main(str(folder)) == 0, said.getvalue()
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Read]:
    """Every page by its place, read."""
    read = {}
    for path in sorted(site.rglob("*.html")):
        read[path.relative_to(site).as_posix()] = page = Read()
        page.feed(path.read_text(encoding="utf-8"))
    return read


def is_elsewhere(address: str) -> bool:
    return re.match(r"(?:\w+:)?//", address) is not None


# ---- as files


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_an_anchor_of_the_site(site, pages):
    wrong = []
    for place, page in pages.items():
        if place == "404.html":  # its links are from wherever it is shown
            continue
        for link in page.links:
            if is_elsewhere(link) or link.startswith(("mailto:", "data:", "javascript:")):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = os.path.normpath(Path(place).parent / name) if name else place
            target = f"{target}/index.html".removeprefix("./") if (site / target).is_dir() else target
            if not (site / target).exists() or (anchor and anchor not in pages[target].anchors):
                wrong.append((place, link))
    assert wrong == []
    assert sum(len(page.links) for page in pages.values()) > 3000


@pytest.mark.slow
def test_what_a_page_loads_is_there_and_comes_from_nowhere_else(site, pages):
    for place, page in pages.items():
        for address in page.loaded:
            assert not is_elsewhere(address), (place, address)
            if place != "404.html" and not address.startswith("data:"):
                assert (site / Path(place).parent / address.partition("?")[0]).exists(), (place, address)
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path


@pytest.mark.slow
def test_every_document_is_in_the_navigation(site):
    nav = (site.parent / "site.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    documents = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {name for name in documents if name not in nav} == set()


@pytest.mark.slow
def test_every_command_is_there_with_all_its_options(pages):
    found = 0

    def walk(words: tuple[str, ...], command: Any) -> None:
        nonlocal found
        for name, each in getattr(command, "commands", {}).items():
            walk((*words, name), each)
        if not words or hasattr(command, "commands"):
            return
        page = pages[f"reference/commands/{words[0]}.html"]
        assert "-".join(words) in page.anchors
        assert " ".join((command.help or "").split())[:60] in " ".join(page.text.split())
        flags = {flag for code in page.codes for flag in re.findall(r"--[\w-]+", code)}
        for parameter in command.params:
            assert set(parameter.opts) <= flags | page.codes or parameter.param_type_name == "argument", (
                words,
                parameter,
            )
            found += 1

    walk((), get_command(app))
    assert found > 500


@pytest.mark.slow
def test_every_setting_is_there_with_its_key_its_flag_and_its_default(pages):
    page = pages["reference/settings.html"]
    text = " ".join(page.text.split())
    assert len(settings()) >= 60
    for each in settings():
        assert each.keyword in page.anchors
        assert f"{each.flag} {each.look}".strip() in page.codes
        assert f"{each.section}.{each.key}" in text
        assert f"Default: {each.default}" in text, each.key


@pytest.mark.slow
def test_every_name_a_setting_may_have_is_there_with_a_sentence(site, pages):
    page = pages["reference/names.html"]
    kinds = {each.kind.what: each.kind.table() for each in settings() if each.kind is not None}
    assert set(kinds) >= {"bandwidth policy", "schedule", "radio", "algorithm", "merge", "model", "task"}
    for table in kinds.values():
        assert set(table) <= page.codes
    html = (site / "reference/names.html").read_text(encoding="utf-8")
    terms = re.findall(r"<dt><code>(.*?)</code></dt><dd>(.*?)</dd>", html)
    assert len(terms) == sum(map(len, kinds.values()))
    assert [term for term, said in terms if len(re.sub(r"<.*?>", "", said)) < 15] == []


@pytest.mark.slow
def test_every_method_has_an_entry_with_its_settings_and_its_differences(pages):
    page = pages["reference/methods.html"]
    text = " ".join(page.text.split())
    for method in listed_methods():
        assert method.name in page.anchors
        rule = " ".join((method.make.__doc__ or "").split()).partition("``")[0]
        assert rule.partition("Args:")[0] in text, method.name
        assert {f"{method.name}.{key}" for key in own_settings(method.make)} <= page.codes
    assert "multiplies by √(1 + τ) where we divide" in text


@pytest.mark.slow
def test_every_public_name_is_there(pages):
    """What the source defines, read line by line and not as the reference reads it."""
    assert set(perfeds2.__all__) <= pages["reference/python/index.html"].codes
    defined = set()
    for path in (ROOT / "perfeds2").glob("*/**/*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = re.findall(r"^(?:async def|def|class) ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        defined |= {f"{module}.{name}" for name in names if not module.startswith("perfeds2.commands")}
    assert len(defined) > 1000
    python = [page for place, page in pages.items() if place.startswith("reference/python/")]
    assert defined - set().union(*(page.anchors for page in python)) == set()


@pytest.mark.slow
def test_equations_are_set_and_none_is_left_as_latex(pages):
    written = (ROOT / "docs/explanation/paper-to-code.md").read_text(encoding="utf-8").count("$`")
    assert written > 55
    assert pages["explanation/paper-to-code.html"].equations == written
    assert pages["explanation/concepts.html"].equations == 1
    for place, page in pages.items():
        if not place.startswith("files/"):
            assert not re.search(r"\\(?:frac|sum|nabla|left)\b", page.text), place


@pytest.mark.slow
def test_a_name_in_a_document_leads_to_its_reference(pages):
    rate = "../reference/python/network.html#perfeds2.network.link.rate_bps"
    assert rate in pages["explanation/paper-to-code.html"].links
    assert "../reference/commands/errata.html" in pages["reports/errata.html"].links


@pytest.mark.slow
def test_a_link_that_leads_nowhere_stops_the_build(site, tmp_path):
    """The builder is strict, about pages and about anchors."""
    make = importlib.import_module("make")
    settings_ = (site.parent / "site.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / "site.yml").write_text(settings_ + "\nnav: [index.md]\n", encoding="utf-8")
    (tmp_path / "pages").mkdir()
    page = tmp_path / "pages" / "index.md"
    for text, status in (("# A\n\n[a](#a)\n", 0), ("# A\n\n[a](#b)\n", 1), ("# A\n\n[a](b.md)\n", 1)):
        page.write_text(text, encoding="utf-8")
        assert make.build(tmp_path)[0] == status, text


@pytest.mark.parametrize("repository", ["someone/perfeds2", None])
def test_a_notebook_page_opens_elsewhere_if_the_repository_is_known(monkeypatch, repository):
    make = importlib.import_module("make")
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    path = ROOT / "examples" / "notebooks" / "planning.ipynb"
    page = make.notebook_page(path, path.read_text(encoding="utf-8"))
    assert page.startswith("# Planning a fleet\n")
    assert "````python\n" in page
    where = "someone/perfeds2/blob/main/examples/notebooks/planning.ipynb"
    assert (f"(https://colab.research.google.com/github/{where})" in page) == (repository is not None)
    assert ("https://mybinder.org/v2/gh/someone/perfeds2/main?labpath=" in page) == (repository is not None)


# ---- pictures


@pytest.mark.slow
def test_a_picture_is_what_its_command_draws():
    """Words to the letter, numbers to half a pixel: another machine may round the other way."""
    pictures = importlib.import_module("pictures")
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        there, now = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8"), draw()
        again = f"run: python docs/site/pictures.py {name}"
        assert NUMBER.sub("#", there) == NUMBER.sub("#", now), again
        assert [*map(float, NUMBER.findall(there))] == pytest.approx([*map(float, NUMBER.findall(now))], abs=0.5), again
        assert len(there) < 100_000


@pytest.mark.slow
def test_a_chart_shows_the_numbers_of_its_table():
    charts = importlib.import_module("charts")
    assert {path.stem for path in charts.FOLDER.glob("*.svg")} == set(charts.CHARTS)
    for name, draw in charts.CHARTS.items():
        there = (charts.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert there == draw(), f"run: python docs/site/charts.py {name}"


@pytest.mark.slow
def test_a_picture_that_is_none_is_an_error(capsys):
    assert importlib.import_module("pictures").main(["quorun"]) == 2
    assert "choose from straggler, quorum" in capsys.readouterr().err


# ---- in the browser

FLAGS = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
LOOKED_AT = [
    "reference/settings.html",
    "index.html",
    "explanation/concepts.html",
    "reference/python/theory.html",
    "explanation/paper-to-code.html",
]
WIDE = [
    "reference/commands/compare.html",
    "reference/names.html",
    "explanation/glossary.html",
    "how-to/deploy.html",
    "explanation/methods.html",
    "reports/reproduction.html",
    "explanation/theory.html",
    "files/CHANGELOG.html",
]  # tables, code, long words


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


def reader(test: Any) -> Any:
    for mark in in_chromium:
        test = mark(test)
    return test


def open_page(browser: Any, path: Path, width: int) -> None:
    look(browser, width)
    browser.get(path.as_uri())


def look(browser: Any, width: int, *, dark: bool = False) -> None:
    """Let the open page, and those opened later, have this width and theme."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wish = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wish})


@reader
def test_pages_fit_a_phone_and_ask_for_nothing_elsewhere(browser, site):
    browser.get_log("performance")
    for place in (*LOOKED_AT, *WIDE):
        open_page(browser, site / place, 360)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360, place
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert len(asked) > len(LOOKED_AT + WIDE)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:", "chrome:"))] == []
    assert browser.get_log("browser") == []


@reader
def test_pages_are_light_or_dark_as_the_reader_is_and_so_are_pictures(browser, site):
    open_page(browser, site / "explanation/concepts.html", 1280)
    colour = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    for dark in (False, True):
        look(browser, 1280, dark=dark)
        wait_for_colours(browser)
        ground = browser.execute_script(colour, "body", "background-color")
        ink = browser.execute_script(colour, ".picture svg text", "fill")
        assert brightness(ground) < 60 if dark else brightness(ground) > 200
        assert brightness(ink) > 200 if dark else brightness(ink) < 60
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 1280


def brightness(colour: str) -> float:
    red, green, blue = (float(each) for each in re.findall(r"[\d.]+", colour)[:3])
    return (red + green + blue) / 3


@reader
def test_the_search_finds_without_a_server(browser, site):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(browser, site / "reference/index.html", 1280)
    worker = "document.querySelector('iframe[title=search]').contentWindow"
    browser.execute_script(f"{worker}.addEventListener('message', () => {{ window.indexed = true }})")
    browser.find_element("css selector", "body").send_keys(Keys.CONTROL, "k")
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return window.indexed"))  # not when the page opened
    inside = "[...document.querySelectorAll('*')].find((each) => each.shadowRoot)?.shadowRoot"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(f"return {inside}?.activeElement?.tagName") == "INPUT")
    browser.switch_to.active_element.send_keys("quorum")
    found = f"return [...{inside}.querySelectorAll('a')].some((each) => each.href.includes('concepts.html'))"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(found))


@reader
@needs("axe")
@pytest.mark.parametrize("place", LOOKED_AT)
def test_axe_finds_no_serious_fault(browser, site, place):
    open_page(browser, site / place, 360)
    looks = [(360, False), (1280, True)]
    if place == LOOKED_AT[0]:
        looks += [(360, True), (1280, False)]
    for number, (width, dark) in enumerate(looks):
        look(browser, width, dark=dark)
        if number == 2:  # width and theme together change only the frame
            browser.execute_script("document.querySelector('.md-content').remove()")
        found = faults(browser, dark=dark)
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["target"] for node in each["nodes"]][:5]) for each in serious] == [], (width, dark)
