"""The page in a real browser, opened from disk."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from puma.pools import Pool
from puma.pools.writer import PoolPart, new_folder, write_pool
from puma.report.page import write_report
from report.results import margin_of, write_experiment, write_margins

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[dev]'")

from selenium.common.exceptions import TimeoutException  # noqa: E402
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

COUNT = 200
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --force-color-profile=srgb"
).split()


class Reader:
    """A person in front of the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def find(self, css: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, css)
        return found

    def all(self, css: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, css)
        return found

    def run(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def wait(self, until: Callable[[], object]) -> None:
        WebDriverWait(self.driver, 10, poll_frequency=0.02).until(lambda _: until())

    def choose(self, css: str, value: str) -> None:
        Select(self.find(css)).select_by_value(value)

    def type(self, css: str, text: str) -> None:
        self.find(css).clear()
        self.find(css).send_keys(text)

    def press(self, key: str) -> None:
        self.driver.switch_to.active_element.send_keys(key)

    def places(self) -> list[int]:
        return [
            int(place)
            for place in self.run(
                "return [...document.querySelectorAll('#tiles .tile')].map((tile) => tile.dataset.place)"
            )
        ]

    def expect(self, places: list[int]) -> None:
        """Wait until these tiles are there, and no others; a browser may tell of a choice a moment later."""
        with contextlib.suppress(TimeoutException):
            self.wait(lambda: self.places() == places)
        assert self.places() == places

    def emulate(self, command: str, **values: object) -> None:
        self.driver.execute_cdp_cmd(f"Emulation.{command}", values)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on tiles of one plain colour each, so that a screenshot can tell them apart."""
    folder = tmp_path_factory.mktemp("site")
    images = np.zeros((COUNT, 8, 8, 3), dtype=np.uint8)
    images[:] = colours()[:, None, None, :]
    with new_folder(folder / "pool", force=False) as place:
        write_pool(place, PoolPart([(images, np.arange(COUNT) % 4)], ["ant", "<b>bee", "cat", "dog"], COUNT, 0))
    write_experiment(folder / "exp", folder / "pool")
    return write_report([folder / "exp"], folder / "report.html")


def colours() -> np.ndarray:
    return np.random.default_rng(3).integers(256, size=(COUNT, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    service = next(filter(None, map(shutil.which, ("chromedriver", "chromium.chromedriver"))), None)
    if browser is None or service is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(service))
    yield started
    started.quit()


@pytest.fixture
def reader(driver: Any, site: Path) -> Iterator[Reader]:
    """The page, freshly opened at the size of a desk; afterwards nothing may have gone wrong or out."""
    driver.get_log("performance")
    person = Reader(driver)
    person.emulate("setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    person.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    driver.get(site.as_uri())
    driver.execute_script("localStorage.clear()")
    driver.refresh()
    yield person
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = {request["request"]["url"] for request in sent if request["documentURL"] == site.as_uri()}
    assert site.as_uri() in asked
    assert [url for url in asked if not url.startswith("data:")] == [site.as_uri()]


def shown(site: Path) -> dict[str, Any]:
    text = site.read_text()
    start = text.index('id="gallery-columns">') + len('id="gallery-columns">')
    columns: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])
    return columns


def test_filters_and_sorting(reader: Reader, site: Path) -> None:
    columns = shown(site)
    everything = range(COUNT)
    reader.find("#unit").click()
    reader.expect(list(everything)[:60])  # a page of tiles, not all of them
    reader.choose("#class", "1")
    bees = [place for place in everything if columns["label"][place] == 1]
    reader.expect(bees)
    assert reader.find("#count").text == f"{len(bees)} samples match, {len(bees)} shown."
    assert reader.find("#tiles .tile strong").text == "<b>bee"
    reader.type("#from", "0.05")
    reader.type("#to", "0.2")
    between = [place for place in bees if 0.05 <= columns["margin"][place] <= 0.2]
    reader.expect(between)
    reader.choose("#sort", "-margin")
    reader.expect(between[::-1])
    reader.choose("#kept", "0")
    reader.expect([])
    assert reader.find("#count").text == "No sample matches."
    reader.find("#filters button").click()
    reader.wait(lambda: len(reader.places()) == 60)
    reader.choose("#kept", "0")
    reader.expect([place for place in everything if not columns["kept"][place]])
    assert len(reader.places()) == COUNT // 5
    reader.choose("#kept", "")
    reader.choose("#sort", "label")
    reader.expect(sorted(everything, key=lambda place: columns["label"][place])[:60])
    reader.choose("#group", "lowest")
    assert sorted(reader.places()) == sorted(columns["groups"]["lowest"][2])


def test_more_tiles_come_on_demand(reader: Reader) -> None:
    for expected in (120, 180, 200):
        reader.find("#more").click()
        assert len(reader.places()) == expected
    assert not reader.find("#more").is_displayed()
    assert reader.run("return document.activeElement.dataset.place") == "180"  # the first new tile


def test_the_detail_by_keyboard(reader: Reader, site: Path) -> None:
    columns = shown(site)
    dialog = reader.find("#detail")
    reader.find("#unit").click()
    reader.run("document.querySelectorAll('#tiles .tile')[2].focus()")
    reader.press(Keys.ENTER)
    reader.wait(dialog.is_displayed)
    assert reader.find("#place").text == "3 of 200"
    names, values = ([element.text for element in reader.all(f"#numbers {kind}")] for kind in ("dt", "dd"))
    numbers = dict(zip(names, values, strict=True))
    assert numbers["sample_id"] == str(columns["id"][2])
    assert float(numbers["margin"]) == columns["margin"][2] == pytest.approx(np.sort(margin_of(COUNT))[2])
    assert float(numbers["strength"]) == columns["strength"][2]
    label = columns["label"][2]
    assert (numbers["label"], numbers["rival"]) == (columns["classes"][label], columns["classes"][label])
    assert numbers["prediction"] == f"{columns['classes'][(label + 1) % 4]} (wrong)"
    assert (numbers["plan"], numbers["origin"]) == ("✓ kept", "real")
    reader.press(Keys.ARROW_RIGHT)
    assert reader.find("#place").text == "4 of 200"
    for _ in range(5):
        reader.press(Keys.ARROW_LEFT)
    assert reader.find("#place").text == "1 of 200"
    assert reader.find("#previous").get_attribute("aria-disabled") == "true"
    reader.press(Keys.ESCAPE)
    reader.wait(lambda: not dialog.is_displayed())
    assert reader.run("return document.activeElement.dataset.place") == "2"


def test_the_ends_of_the_detail_are_no_dead_end(reader: Reader, site: Path) -> None:
    reader.run("document.querySelectorAll('#tiles .tile')[1].focus()")
    reader.press(Keys.ENTER)
    reader.run("document.getElementById('previous').focus()")
    reader.press(Keys.ENTER)
    assert reader.find("#place").text == "1 of 200"
    assert reader.run("return document.activeElement.id") == "previous"
    reader.press(Keys.ENTER)
    reader.press(Keys.ARROW_RIGHT)
    assert reader.find("#place").text == "2 of 200"
    assert reader.find("#previous").get_attribute("aria-disabled") == "false"


def test_a_pruned_sample_has_no_strength(reader: Reader, site: Path) -> None:
    reader.choose("#kept", "0")
    reader.expect([place for place, kept in enumerate(shown(site)["kept"]) if not kept])
    reader.find("#tiles .tile").click()
    names, values = ([element.text for element in reader.all(f"#numbers {kind}")] for kind in ("dt", "dd"))
    numbers = dict(zip(names, values, strict=True))
    assert (numbers["plan"], numbers["strength"]) == ("✕ pruned", "– (pruned)")


def test_the_first_click_after_typing_counts(reader: Reader, site: Path) -> None:
    reader.type("#from", "0.1")
    reader.find("#tiles .tile").click()
    assert reader.find("#detail").is_displayed()


@pytest.mark.parametrize("text", ["1e400", "1e", "-"])
def test_what_is_no_number_is_told(reader: Reader, text: str) -> None:
    reader.type("#to", text)
    reader.wait(lambda: "Margin to is not a number and is not applied." in reader.find("#count").text)
    assert len(reader.places()) == 60
    reader.find("#filters button").click()
    reader.wait(lambda: reader.find("#count").text == "200 samples match, 60 shown.")


def test_tiles_show_their_own_sample(reader: Reader, site: Path) -> None:
    """The colour in the middle of a tile on the screen is the colour of that sample."""
    from PIL import Image

    columns = shown(site)
    reader.find("#group").click()
    for place in (0, 37, 59):
        picture = reader.all("#tiles .picture")[place]
        reader.run("arguments[0].scrollIntoView({block: 'center'})", picture)
        path = site.parent / "tile.png"
        picture.screenshot(str(path))
        with Image.open(path) as screen:
            middle = screen.convert("RGB").getpixel((screen.width // 2, screen.height // 2))
        assert middle == tuple(colours()[columns["id"][place]].tolist())


def test_a_click_opens_the_detail_and_a_strip_leads_to_its_group(reader: Reader, site: Path) -> None:
    reader.find(".strip .tile").click()
    assert reader.find("#place").text == f"1 of {len(shown(site)['groups']['lowest'][2])}"
    reader.find("#next").click()
    assert reader.find("#place").text.startswith("2 of")
    reader.find("#close").click()
    reader.find(".strip h3 button").click()
    assert Select(reader.find("#group")).first_selected_option.get_attribute("value") == "lowest"


def test_without_a_plan_nothing_is_said_of_one(reader: Reader, site: Path) -> None:
    folder = site.parent / "unplanned"
    if not folder.exists():
        folder.mkdir()
        write_margins(folder / "margins.parquet", Pool.open(site.parent / "pool"))
    reader.driver.get(write_report([folder], folder / "r.html").as_uri())
    sorts = [choice.get_attribute("value") for choice in Select(reader.find("#sort")).options]
    assert sorts == ["margin", "-margin", "label", "id"]
    assert not reader.find("#kept-label").is_displayed()
    label = reader.find("#tiles .tile").get_attribute("aria-label") or ""
    assert re.fullmatch(r"Sample \d+, .*, predicted .*, margin −25.5/255", label), label


def test_light_and_dark(reader: Reader) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = reader.run(ground)
    reader.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = reader.run(ground)
    assert light != dark
    reader.find("#theme").click()
    assert reader.run(ground) == light
    reader.driver.refresh()
    assert reader.run(ground) == light  # it is remembered
    reader.find("#theme").click()
    assert reader.run(ground) == dark


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_page_does_not_scroll_sideways(reader: Reader, width: int) -> None:
    reader.emulate("setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=True)
    assert reader.run("return document.documentElement.scrollWidth") == width
    reader.find("#tiles .tile").click()
    box = reader.find("#detail").rect
    left, right = box["x"], box["x"] + box["width"]
    assert left >= 0
    assert right <= width


def test_one_switch_for_all_units(reader: Reader, site: Path) -> None:
    assert reader.find("#unit").text == "Units: 1/255"
    told = reader.find(".told")
    assert "eps 25.5/255" in told.text
    reader.type("#from", "25.5")
    some = [place for place in range(COUNT) if shown(site)["margin"][place] >= 0.1]
    reader.expect(some[:60])
    ticks = """
        return [...document.querySelectorAll("#margins-and-strengths svg .tick")]
            .filter((tick) => tick.getBoundingClientRect().width).map((tick) => tick.textContent)"""
    assert {"20", "60"} <= set(reader.run(ticks))
    reader.find("#unit").click()
    assert reader.find("#unit").text == "Units: [0, 1]"
    assert "eps 0.1)" in told.text
    assert "25.5" not in told.text
    assert reader.find("#from").get_property("value") == "0.1"
    reader.expect(some[:60])
    assert "+0.1" in reader.find("#tiles .tile").text
    assert {"0.2", "60"} & set(reader.run(ticks)) == {"0.2"}
    reader.driver.refresh()
    assert reader.find("#unit").text == "Units: [0, 1]"  # it is remembered


def test_tables_are_copied(reader: Reader) -> None:
    reader.run("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }")
    for button in reader.all("#accuracy-and-robustness .tools button")[-3:]:
        button.click()
    reader.wait(lambda: len(reader.run("return window.copied")) == 3)
    csv, markdown, latex = (text.splitlines() for text in reader.run("return window.copied"))
    assert csv[0].startswith(
        'row,seed numbers,"accuracy, %","paper, %","to baseline, points","robustness (C&W), %","paper'
    )
    assert csv[1].startswith('TRADES (baseline),"0, 1","80.50 +- 0.71 [74.15, 86.85]",85.00,0 (itself)')
    assert [line.count("|") for line in markdown] == [9, 9, 9, 9]
    assert markdown[1] == "|---|---:|---:|---:|---:|---:|---:|---:|"
    assert latex[0] == r"\begin{tabular}{lrrrrrrr}"
    assert latex[2].startswith(r"row & seed numbers & accuracy, \% &")
    assert r"80.50 $\pm$ 0.71" in latex[4]
    assert len(reader.all(".tools")) == len(reader.all(".scroll")) + len(reader.all("figure"))


def test_figures_are_saved_as_they_look(reader: Reader) -> None:
    reader.run("""
        window.saved = [];
        URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved.push(text)); return "#saved"; };
        HTMLAnchorElement.prototype.click = function () { window.saved.push(this.download); };""")
    reader.find("#in-short figure .tools button").click()
    reader.wait(lambda: len(reader.run("return window.saved")) == 2)
    name, text = sorted(reader.run("return window.saved"), key=len)
    assert name == "accuracy-against-robustness.svg"
    picture = ElementTree.fromstring(text.encode())
    words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "Accuracy against robustness"
    assert {"TRADES", "PUMA", "accuracy"} <= set(words)
    assert "class=" not in text
    assert "var(" not in text
    reader.run("document.querySelector('#margins-and-strengths figure .tools button').click()")
    reader.wait(lambda: len(reader.run("return window.saved")) == 4)
    margins = max(reader.run("return window.saved")[2:], key=len)
    assert "in 1/255" in margins
    assert margins.count(">margin (linf)") == 1  # the hidden axis is left out


def test_a_screenshot_is_not_empty(reader: Reader, site: Path) -> None:
    from PIL import Image

    path = site.parent / "page.png"
    reader.driver.save_screenshot(str(path))
    with Image.open(path) as screen:
        assert len(screen.convert("RGB").getcolors(1 << 24) or []) > 20
    marks = reader.all("#in-short svg .mark")
    assert marks
    assert all(mark.size["width"] > 0 for mark in marks)


def test_everything_has_a_name(reader: Reader) -> None:
    unnamed = reader.run("""
        const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
        return [...document.querySelectorAll("button, a, select, input, [role=img], [role=region]")]
            .filter((e) => !named(e)).map((e) => e.outerHTML)""")
    assert unnamed == []
    assert reader.run("return new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size") == len(
        reader.all("[id]")
    )
