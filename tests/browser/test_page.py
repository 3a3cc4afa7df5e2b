"""The page in a browser, with ten thousand devices of a running plugin."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import picture
from tests.browser.node import PATIENCE, Node, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.timeout(600)

COUNT = 10_000
MISSING = (317, 4242, 6001, 9999)
CHANGING = 7777
CHANGES = 10
PODS = 8
DEVICES_PER_POD = 60
READY = "return document.documentElement.dataset.ready === 'true'"
TEXT = "return document.querySelector(arguments[0])?.innerText.trim()"


@pytest.fixture(scope="module")
def shared_node(browser: Chrome) -> Iterator[Node]:
    """Run a node with devices in every state."""
    with running(COUNT) as node:
        for number in range(PODS):
            node.admit(f"phone-{number}", DEVICES_PER_POD)
        node.remove(*MISSING)
        node.listed(COUNT - len(MISSING))
        wait(lambda: node.report()["counts"]["allocated"] > 0)
        yield node


@pytest.fixture
def node(shared_node: Node) -> Node:
    """Return the node, after the changes of the previous test are undone: tests run in any order."""
    if not os.path.exists(shared_node.path(CHANGING)):
        shared_node.add(CHANGING)
    wait(lambda: shared_node.report()["devices"][CHANGING]["state"] == "free")
    return shared_node


@pytest.fixture
def page(browser: Chrome, node: Node, measured: Callable[[str, float], None]) -> Chrome:
    """Open the page."""
    page = opened(browser, node)
    measured("from opening the page to all cells drawn", ready(page))
    return page


def opened(browser: Chrome, node: Node, query: str = "") -> Chrome:
    """Open the page of a node, with a ``query`` in its address, and return the browser."""
    browser.get("about:blank")
    browser.get_log("browser")  # type: ignore[no-untyped-call]
    media(browser)
    browser.get(f"{node.url}{query}")
    until(browser, READY)
    return browser


def ready(browser: Chrome) -> float:
    """Return the seconds from the navigation until all cells were drawn, by the browser's clock."""
    milliseconds: float = script(browser, "return performance.getEntriesByName('ready')[0].startTime")
    return milliseconds / 1000


def media(browser: Chrome, **features: str) -> None:
    """Emulate media features, the preferences of a user."""
    named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})


def set_theme(browser: Chrome, theme: str) -> None:
    """Set the light or dark theme, and wait until the map is drawn in it."""
    media(browser, prefers_color_scheme=theme)
    until(browser, "return matchMedia(`(prefers-color-scheme: ${arguments[0]})`).matches", theme)
    until(browser, f"{STATES} return [0, {COUNT - 2}].every(cell)")


def wait(condition: Callable[[], bool]) -> None:
    """Wait for a condition outside the browser."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end


def script(browser: Chrome, text: str, *arguments: Any) -> Any:
    """Run a script in the page."""
    return browser.execute_script(text, *arguments)


def until(browser: Chrome, text: str, *arguments: Any) -> None:
    """Wait until a script returns true."""
    WebDriverWait(browser, PATIENCE, 0.02).until(lambda _: script(browser, text, *arguments), f"{text} {arguments}")


def find(browser: Chrome, selector: str) -> WebElement:
    """Return the first element of a selector, one that no report replaces; the functions below read all others."""
    return browser.find_element(By.CSS_SELECTOR, selector)


def text(browser: Chrome, selector: str) -> str:
    """Return the text of the first element of a selector."""
    return texts(browser, selector)[0]


def shows(browser: Chrome, selector: str, expected: str) -> None:
    """Wait until the first element of a selector has a text."""
    try:
        until(browser, f"{TEXT} === arguments[1]", selector, expected)
    except TimeoutException as error:
        shown = f"{selector} shows {script(browser, TEXT, selector)!r} at {browser.current_url}"
        raise AssertionError(f"{shown}, not {expected!r}; console: {browser.get_log('browser')}") from error  # type: ignore[no-untyped-call]


def mentions(browser: Chrome, selector: str, part: str) -> None:
    """Wait until the text of the first element of a selector contains a part."""
    until(browser, f"{TEXT}?.includes(arguments[1])", selector, part)


def attribute(browser: Chrome, selector: str, name: str) -> str | None:
    """Return an attribute of the first element of a selector."""
    found: str | None = script(
        browser, "return document.querySelector(arguments[0]).getAttribute(arguments[1])", selector, name
    )
    return found


def displayed(browser: Chrome, selector: str) -> bool:
    """Return whether the first element of a selector is visible."""
    visible: bool = script(browser, "return document.querySelector(arguments[0]).checkVisibility()", selector)
    return visible


def texts(browser: Chrome, selector: str) -> list[str]:
    """Return the text of all elements of a selector, at one moment: a new report replaces rows."""
    found: list[str] = script(
        browser,
        """return [...document.querySelectorAll(arguments[0])]
        .map((each) => (each.innerText ?? each.textContent).trim())""",
        selector,
    )
    return found


def press(browser: Chrome, selector: str) -> None:
    """Click an element that a new report may replace."""
    script(browser, "document.querySelector(arguments[0]).click()", selector)


def drawn_states(browser: Chrome) -> list[str]:
    """Return the state of each cell by its color."""
    drawn, states = picture.take_screenshot(browser), picture.state_colors(browser)
    return [states[drawn.middle(i)] for i in range(COUNT)]


def lit_cells(browser: Chrome) -> list[int]:
    """Return the cells that a search or filter has not dimmed."""
    drawn, states = picture.take_screenshot(browser), picture.state_colors(browser)
    return [i for i in range(COUNT) if drawn.middle(i) in states]


# -- drawing


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_has_its_color_and_a_shape_of_its_own(page: Chrome, node: Node, theme: str) -> None:
    """The shapes distinguish the states without colors."""
    set_theme(page, theme)
    report = node.report()
    drawn = drawn_states(page)
    assert drawn == [device["state"] for device in report["devices"]]
    counts, disjoint = Counter(drawn), ("free", "unhealthy")
    assert [counts[state] for state in disjoint] == [report["counts"][state] for state in disjoint]
    screenshot = picture.take_screenshot(page)
    shapes = {(state, picture.shape(screenshot.cell(i))) for i, state in enumerate(drawn)}
    assert len(shapes) == len({shape for _, shape in shapes}) == len(counts) == 3


CONTRASTS = """
const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
function rgba(color) {
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
}
function ground(element) {
  for (; element; element = element.parentElement) {
    const color = rgba(getComputedStyle(element).backgroundColor);
    if (color[3] === 255) return color;
  }
}
function luminance(color) {
  const [r, g, b] = color.map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(element) {
  const colors = [rgba(getComputedStyle(element).color), ground(element)].map(luminance).sort((a, b) => b - a);
  return (colors[0] + 0.05) / (colors[1] + 0.05);
}
function required(element) {
  const {fontSize, fontWeight} = getComputedStyle(element);
  return parseFloat(fontSize) >= (fontWeight >= 700 ? 18.66 : 24) ? 3 : 4.5;
}
return [...document.querySelectorAll('body *')]
  .filter((element) => element.checkVisibility() && [...element.childNodes].some((node) => node.data?.trim()))
  .map((element) => [element.innerText, contrast(element), required(element)]);
"""
"""Text, contrast and required contrast of each element with visible text (WCAG 2.2, success criterion 1.4.3)."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_requires(page: Chrome, theme: str) -> None:
    """Those of problems, counts, pods and an unhealthy device, and those of the table."""
    set_theme(page, theme)
    find(page, "#search").send_keys(f"aosp_binder{MISSING[0]}", Keys.ENTER)
    mentions(page, "#detail", "Unhealthy")
    contrasts = script(page, CONTRASTS)
    show_table(page)
    contrasts += script(page, CONTRASTS)
    assert len(contrasts) > 100
    assert [(text, contrast) for text, contrast, required in contrasts if contrast < required] == []


def test_page_shows_node_counts_and_registration(page: Chrome, node: Node) -> None:
    counts = node.report()["counts"]
    shows(page, "#node", "phone-node-07")
    assert re.fullmatch(r"Up \d+ min", text(page, "#uptime"))
    shows(page, ".resource h2", "aosp.io/binder")
    healthy = COUNT - len(MISSING)
    until(
        page, f"return document.querySelector('.pill').textContent === 'The kubelet can allocate {healthy:,} of 10,000'"
    )
    assert attribute(page, ".pill", "class") == "pill note"
    shows(page, ".total .value", "10,000")
    for state in ("allocated", "free", "unhealthy"):
        shows(page, f".stat.{state} .value", f"{counts[state]:,}")
    assert not displayed(page, ".stat.unknown")
    assert not displayed(page, ".stat.gone")
    assert not displayed(page, ".note-line")
    until(page, "return document.querySelector('#live').textContent.trim() === 'Live'")


def test_page_loads_from_the_plugin_only_and_logs_nothing(page: Chrome, node: Node) -> None:
    """A violation of the content security policy would be logged to the console."""
    urls = script(page, "return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(urls) >= 9
    assert all(url.startswith(node.url) for url in urls)
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


# -- times: the target is one second. The times are printed at the end of the run. Only a time of another order of
# magnitude fails, because the machine may be busy.


def test_change_of_a_device_is_drawn(page: Chrome, node: Node, measured: Callable[[str, float], None]) -> None:
    """The log names the device as well."""
    for _ in range(CHANGES):
        measured("from the change of a device to the change of its cell", change(page, node))
    latest = text(page, "#log li")
    assert latest.startswith("devices changed")
    assert f"changed=aosp_binder{CHANGING}:" in latest


def change(page: Chrome, node: Node) -> float:
    """Remove or create a device; return the seconds until its cell has another color."""
    script(
        page,
        f"""{STATES} const before = pixel({CHANGING}); window.changedAt = 0;
        const timer = setInterval(() => {{
          if (pixel({CHANGING}) === before) return;
          window.changedAt = Date.now();
          clearInterval(timer);
        }}, 20)""",
    )
    started = time.time()
    if os.path.exists(node.path(CHANGING)):
        node.remove(CHANGING)
    else:
        node.add(CHANGING)
    WebDriverWait(page, PATIENCE, 0.1).until(lambda _: script(page, "return window.changedAt > 0"))
    seconds: float = script(page, "return window.changedAt") / 1000 - started
    return seconds


CELLS = """
const canvas = document.querySelector('.map canvas'), box = canvas.getBoundingClientRect();
const [pitch, columns, left, top] = ['pitch', 'columns', 'left', 'top'].map((name) => Number(canvas.dataset[name]));
"""
"""Script that defines the position of the cells."""

STATES = (
    CELLS
    + """
const states = ['free', 'unhealthy', 'allocated'];
const style = getComputedStyle(document.documentElement);
function pixel(i) {
  const x = left + (i % columns) * pitch + Math.floor(pitch / 2) - 1;
  const y = top + Math.floor(i / columns) * pitch + Math.floor(pitch / 2);
  const [r, g, b] = canvas.getContext('2d').getImageData(x, y, 1, 1).data;
  return '#' + [r, g, b].map((part) => part.toString(16).padStart(2, '0')).join('');
}
function cell(i) {
  return states.find((state) => style.getPropertyValue(`--${state}`).trim() === pixel(i));
}
"""
)
"""Script that defines the color and state in the middle of a cell."""


def test_selection_survives_changes_of_other_devices(page: Chrome, node: Node) -> None:
    find(page, "#search").send_keys("aosp_binder8888", Keys.ENTER)
    node.remove(CHANGING)
    changed = "return document.querySelector('#log .fields')?.textContent.includes(arguments[0])"
    until(page, changed, f"changed=aosp_binder{CHANGING}:missing")
    shows(page, "#detail h2", "aosp_binder8888")


# -- input


def test_keys_move_the_selection_on_the_map(page: Chrome) -> None:
    """Focus selects the first cell. The selected cell is exposed to screen readers."""
    grid = find(page, ".map")
    columns = int(grid.get_attribute("aria-colcount") or "")
    assert int(grid.get_attribute("aria-rowcount") or "") * columns >= COUNT
    find(page, "#search").click()
    for _ in range(60):
        if page.switch_to.active_element != grid:
            page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.switch_to.active_element == grid
    assert selected(page) == "aosp_binder0"
    for keys, device in (
        (Keys.ARROW_RIGHT * 3, 3),
        (Keys.ARROW_DOWN, 3 + columns),
        (Keys.ARROW_LEFT, 2 + columns),
        (Keys.END, 2 * columns - 1),
        (Keys.HOME, columns),
        (Keys.ARROW_UP, 0),
        (Keys.ARROW_UP, 0),
        (Keys.ARROW_LEFT, 0),
        (Keys.PAGE_DOWN, 10 * columns),
        (Keys.CONTROL + Keys.END, COUNT - 1),
        (Keys.CONTROL + Keys.HOME, 0),
    ):
        grid.send_keys(keys)
        assert selected(page) == f"aosp_binder{device}"
    grid.send_keys(Keys.ESCAPE)
    assert grid.get_attribute("aria-activedescendant") is None
    mentions(page, "#detail", "Select a device")
    until(page, "return location.search === ''")


def selected(page: Chrome) -> str:
    """Return the selected device, as shown and as exposed to screen readers."""
    role, label = script(
        page,
        """const active = document.querySelector('.map').getAttribute('aria-activedescendant');
        return ['role', 'aria-label'].map((name) => document.getElementById(active).getAttribute(name))""",
    )
    device: str = label.split(" · ")[0]
    assert role == "gridcell"
    shows(page, "#detail h2", device)
    return device


def test_click_selects_a_cell_and_shows_its_pod(page: Chrome) -> None:
    script(
        page,
        CELLS
        + """
        const place = { clientX: box.left + left + 5.5 * pitch, clientY: box.top + top + 1.5 * pitch, bubbles: true };
        canvas.dispatchEvent(new PointerEvent('pointermove', place));
        canvas.dispatchEvent(new PointerEvent('pointerdown', place));""",
    )
    columns = int(attribute(page, ".map", "aria-colcount") or "")
    assert selected(page) == f"aosp_binder{columns + 5}"
    detail = text(page, "#detail")
    assert [text for text in ("Allocated", "phone-1", "default", "android") if text not in detail] == []


def test_search_finds_the_devices_of_a_pod(page: Chrome, node: Node) -> None:
    """Other cells are dimmed, the table shows matches only, and Enter steps through them."""
    search = find(page, "#search")
    search.send_keys("phone-3")
    shows(page, "#found", f"{DEVICES_PER_POD} found")
    assert len(lit_cells(page)) == DEVICES_PER_POD
    search.send_keys(Keys.ENTER)
    mentions(page, "#detail", "phone-3")
    first = selected(page)
    search.send_keys(Keys.ENTER)
    assert selected(page) != first
    search.send_keys(Keys.SHIFT + Keys.ENTER)
    assert selected(page) == first
    search.send_keys(Keys.CONTROL + "a", Keys.DELETE)
    shows(page, "#found", "")
    search.send_keys(Keys.ESCAPE)
    find(page, "body").send_keys(Keys.ESCAPE)
    assert drawn_states(page) == [device["state"] for device in node.report()["devices"]]


@pytest.fixture
def short(page: Chrome) -> Iterator[Chrome]:
    """Return the page on a screen that does not show all of it."""
    metrics = {"width": 1200, "height": 600, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield page
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_keys_bring_the_devices_into_view(short: Chrome) -> None:
    for keys in ("t", "m", f"/no such device{Keys.ENTER}"):
        script(short, "document.activeElement.blur(); scrollTo(0, document.body.scrollHeight)")
        find(short, "body").send_keys(keys)
        until(short, "return document.querySelector('.tabs').getBoundingClientRect().top < innerHeight / 2")
        assert script(short, "return document.querySelector('.tabs').getBoundingClientRect().top") > 0
    shows(short, ".unmatched", "No device matches.")


def test_counts_filter_by_state(page: Chrome, node: Node) -> None:
    """Several filters combine, and a second click removes one."""
    unhealthy, allocated = find(page, ".stat.unhealthy"), find(page, ".stat.allocated")
    unhealthy.click()
    assert unhealthy.get_attribute("aria-pressed") == "true"
    assert lit_cells(page) == list(MISSING)
    allocated.click()
    either = [device for device in node.report()["devices"] if device["pods"] or device["reason"]]
    shows(page, "#found", f"{len(either)} found")
    unhealthy.click()
    allocated.click()
    assert allocated.get_attribute("aria-pressed") == "false"
    shows(page, "#found", "")


def show_table(page: Chrome) -> None:
    find(page, ".tab[data-view=table]").click()


def rows(page: Chrome) -> list[str]:
    """Return the devices of the rows that exist as elements."""
    return texts(page, ".devices tbody td.device")


def test_table_lists_problems_first_and_all_devices(page: Chrome, measured: Callable[[str, float], None]) -> None:
    """Only the visible rows exist, also after scrolling to the end. A device's name selects it."""
    show_table(page)
    shows(page, ".table ~ *, .above .caption", "All 10,000 devices, problems first")
    names = rows(page)
    assert names[:4] == [f"aosp_binder{number}" for number in MISSING]
    assert len(names) < 60
    assert all(re.fullmatch(r"\d+ (s|min)", age) for age in texts(page, ".devices td.age")[:4])
    seconds = page.execute_async_script(
        """const scroller = document.querySelector('.scroll.table'), started = performance.now();
        scroller.scrollTop = scroller.scrollHeight;
        requestAnimationFrame(() => setTimeout(() => arguments[0]((performance.now() - started) / 1000)));"""
    )
    measured("from scrolling the table to its end to its last rows", seconds)
    until(page, f"return document.querySelector('tr[aria-rowindex=\"{COUNT + 1}\"]') !== null")
    assert len(rows(page)) < 60
    script(page, "document.querySelector('.scroll.table').scrollTop = 0")
    until(page, "return document.querySelector('tr[aria-rowindex=\"2\"]') !== null")
    script(page, "document.querySelector('.devices tbody .link').click()")
    assert selected(page) == f"aosp_binder{MISSING[0]}"


@pytest.mark.parametrize(
    ("clicks", "first", "order"),
    [
        (["device"], "aosp_binder0", "device"),
        (["device", "device"], "aosp_binder9999", "-device"),
        (["pod"], "aosp_binder0", "pod"),
    ],
)
def test_table_sorts_by_a_column(
    page: Chrome, measured: Callable[[str, float], None], clicks: list[str], first: str, order: str
) -> None:
    """The order is in the address."""
    show_table(page)
    for column in clicks:
        seconds = script(
            page,
            "const started = performance.now(); document.querySelector(`th.${arguments[0]} button`).click();"
            "return (performance.now() - started) / 1000",
            column,
        )
        measured(f"to sort the table by {column}", seconds)
    assert rows(page)[0] == first
    until(page, "return new URLSearchParams(location.search).get('sort') === arguments[0]", order)
    sorts = script(page, "return [...document.querySelectorAll('th')].map((head) => head.ariaSort)")
    assert sorts.count("none") == len(sorts) - 1


def test_csv_has_the_rows_that_match(page: Chrome) -> None:
    """A value that begins like a formula is text."""
    script(
        page,
        """window.saved = '';
        const create = URL.createObjectURL;
        URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return create(blob); };
        HTMLAnchorElement.prototype.click = () => {};""",
    )
    show_table(page)
    find(page, "#search").send_keys("missing")
    press(page, ".above button")
    until(page, "return window.saved !== ''")
    lines = script(page, "return window.saved").split("\r\n")
    assert lines[0].startswith('"device","state","reason"')
    assert [line.split(",")[0] for line in lines[1:-1]] == [f'"aosp_binder{number}"' for number in MISSING]
    load = "import('/page/csv.js').then(({ saveCsv }) => { saveCsv('a', [['=1', 'a\"b']]); arguments[0](); })"
    script(page, "window.saved = ''")
    page.execute_async_script(load)
    until(page, "return window.saved === arguments[0]", '"\'=1","a""b"\r\n')


# -- problems, pods and address


def test_problems_come_first(page: Chrome, node: Node) -> None:
    """Reason in words, since when, the devices, and what to do; a device and its list are one click away."""
    urgent = [problem for problem in problems(page) if problem["severity"] != "notice"]
    shows(page, "#problems h2", f"{len(urgent)} problem{'s' * (len(urgent) > 1)}")
    assert script(page, "return document.title") == f"({len(urgent)}) phone-node-07 · aosp-device-plugin"
    first = " ".join(texts(page, "#problems li")[0].split())
    assert first.startswith("4 devices missing: the file does not exist warning for ")
    assert "Create it again, or its binderfs" in first
    press(page, "#problems li:nth-child(1) .tag")
    assert selected(page) == f"aosp_binder{MISSING[0]}"
    press(page, "#problems li:nth-child(1) .link")
    assert rows(page) == [f"aosp_binder{number}" for number in MISSING]


def problems(page: Chrome) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.execute_async_script(
        "fetch('status').then((answer) => answer.json()).then(({ problems }) => arguments[0](problems))"
    )
    return found


def test_pods_are_grouped_by_namespace(page: Chrome) -> None:
    """Pods with problems come first, devices are ranges, and a namespace can be closed, which the address keeps."""
    find(page, ".tab[data-view=pods]").click()
    shows(page, ".resource .view .caption", f"{PODS} pods in 1 namespace")
    total = f"{PODS} pods, {PODS * DEVICES_PER_POD} devices"
    assert [text for text in ("default", total) if text not in texts(page, ".namespace")[0]] == []
    first, second = texts(page, ".pod-row:not(.group)")[:2]
    assert [text for text in ("phone-5", "1 missing", "aosp_binder300..359") if text not in first] == []
    assert [text for text in ("phone-0", "aosp_binder0..59") if text not in second] == []
    press(page, ".pod-button")
    shows(page, "#detail h2", "phone-5")
    mentions(page, "#detail", "kubectl -n default describe pod phone-5")
    assert len(texts(page, "#detail .device-list li")) == DEVICES_PER_POD
    press(page, ".namespace")
    assert texts(page, ".pod-button") == []
    until(page, "return location.search === '?view=pods&closed=default&pod=default/phone-5'")


def test_address_shows_the_same_again(browser: Chrome, node: Node) -> None:
    """Search, filter, view, order and selection are in a link that is sent."""
    query = "?q=binder&show=unhealthy,gone&view=table&sort=-device&resource=aosp.io/binder&device=aosp_binder317"
    page = opened(browser, node, query)
    shows(page, "#found", f"{len(MISSING)} found")
    assert rows(page)[0] == f"aosp_binder{max(MISSING)}"
    assert selected(page) == "aosp_binder317"
    assert attribute(page, ".stat.unhealthy", "aria-pressed") == "true"
    until(page, "return location.search === arguments[0]", query)


def test_address_with_unknown_values_is_harmless(browser: Chrome, node: Node) -> None:
    page = opened(
        browser, node, "?view=x&sort=%3Cimg%3E&device=nope&resource=a.io/b&show=no&pod=a/%3Cimg%3E&closed=%2C"
    )
    shows(page, "#found", "0 found")
    shows(page, "#detail h2", "<img>")
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


@pytest.fixture
def narrow(browser: Chrome) -> Iterator[Chrome]:
    """Return a browser with the screen of a phone."""
    metrics = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_narrow_screen_has_cards_and_a_sheet(narrow: Chrome, node: Node) -> None:
    """Nothing overflows, a tap shows the details where the eye is, and they can be closed."""
    page = opened(narrow, node)
    assert script(page, "return document.documentElement.scrollWidth") == 420
    assert script(page, "return document.documentElement.scrollHeight") < 3000
    card = "return document.querySelector('.devices tbody tr:not(.spacer)').getBoundingClientRect()"
    assert script(page, f"{card}.height") < 80
    overlap = """const boxes = ['state', 'pod'].map((name) => document.querySelector(`td.${name}`));
        const [state, pod] = boxes.map((cell) => cell.getBoundingClientRect());
        return state.right > pod.left && state.left < pod.right && state.bottom > pod.top && state.top < pod.bottom"""
    assert script(page, overlap) is False
    assert not displayed(page, "#detail")
    script(page, "document.querySelector('.devices tbody .link').click()")
    box = script(page, "return document.querySelector('#detail').getBoundingClientRect().toJSON()")
    assert (box["left"], box["right"], box["bottom"]) == (0, 420, 900)
    assert 200 < box["height"] < 700
    shows(page, "#detail h2", f"aosp_binder{MISSING[0]}")
    press(page, "#detail .close")
    assert not displayed(page, "#detail")


def test_hidden_page_sends_no_requests(page: Chrome) -> None:
    """It continues when it is visible again."""
    script(
        page,
        """window.requests = 0;
        const fetch = window.fetch;
        window.fetch = (...all) => { window.requests += 1; return fetch(...all); };
        window.hiddenNow = true;
        Object.defineProperty(document, 'hidden', { get: () => window.hiddenNow, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));""",
    )
    shows(page, "#live", "Paused")
    assert page.execute_async_script("setTimeout(() => arguments[0](window.requests), 1500)") == 0
    script(page, "window.hiddenNow = false; document.dispatchEvent(new Event('visibilitychange'));")
    until(page, "return document.querySelector('#live').textContent.trim() === 'Live'")


# -- problems of the plugin


def test_lost_connection_is_shown_and_restored(browser: Chrome) -> None:
    """The plugin hangs first, and then exits. The last data stays visible."""
    with running(8) as small:
        page = opened(browser, small)
        small.signal(signal.SIGSTOP)
        until(page, "return document.querySelector('#live').dataset.state === 'lost'")
        mentions(page, "#lost", "Connection lost since")
        shows(page, ".total .value", "8")
        small.signal(signal.SIGCONT)
        until(page, "return document.querySelector('#live').dataset.state === 'live'")
        assert not displayed(page, "#lost")
        small.run(small.stop_plugin())
        until(page, "return document.querySelector('#live').dataset.state === 'lost'")
        mentions(page, "#lost", "the plugin does not answer")
        small.run(small.start_plugin())
        until(page, "return document.querySelector('#live').dataset.state === 'live'")


def test_unknown_allocations_and_registration_are_explained(browser: Chrome) -> None:
    """Without the podresources API no device is called free."""
    with running(8, pod_resources=False) as small:
        page = opened(browser, small)
        mentions(page, "#problems", "Which pod has which device is unknown: ")
        shows(page, ".stat.unknown .value", "8")
        shows(page, ".stat.unknown .name", "Healthy")
        assert text(page, ".pill").endswith("Registered with the kubelet")
        small.run(small.kubelet.stop())
        until(page, "return document.querySelector('.pill').textContent === 'Not registered'")
        until(page, "return document.querySelector('#problems li').className === 'error'")
        assert re.match(
            r"Not registered with the kubelet: .*kubelet.*\n+error\n+for \d+ s\n", text(page, "#problems li")
        )


def test_gone_device_of_a_pod_is_counted_and_found(browser: Chrome) -> None:
    """The pod has three devices: one is gone, one is missing, and one is healthy."""
    with running(8) as small:
        gone, missing, _ = small.admit("phone-1", 3)
        os.unlink(small.directory / gone)
        small.listed(7)
        small.signal(signal.SIGHUP)  # forgets missing devices
        wait(lambda: small.report()["counts"]["gone"] == 1)
        os.unlink(small.directory / missing)
        small.listed(6)
        page = opened(browser, small)
        until(page, "return document.querySelector('.stat.unhealthy .value').textContent === '1'")
        shows(page, ".total .value", "7")
        for key, count in (("allocated", 3), ("gone", 1), ("unhealthy", 1), ("free", 5)):
            shows(page, f".stat.{key} .value", str(count))
            find(page, f".stat.{key}").click()
            shows(page, "#found", f"{count} found")
            find(page, f".stat.{key}").click()
        find(page, ".stat.gone").click()
        show_table(page)
        assert rows(page) == [gone]
        mentions(page, "#problems", "1 device gone, although pods have them")


def test_kubelet_without_the_devices_and_a_second_plugin_are_shown(browser: Chrome) -> None:
    """The kubelet's device manager hangs, so the device that appears does not reach it."""
    with running(8) as small:
        page = opened(browser, small)
        until(page, "return document.querySelector('.pill').textContent === 'The kubelet can allocate 8 of 8'")
        small.kubelet.faults.ignore_devices = True
        small.add(8)
        until(page, "return document.querySelector('.pill').textContent === 'The kubelet can allocate 8 of 9'")
        until(page, "return document.querySelector('.pill').classList.contains('bad')")
        mentions(page, "#problems li.error", "fewer devices than the plugin published: the kubelet has")
        small.kubelet.faults.ignore_devices = False
        second = (
            "return document.querySelector('#problems').textContent.includes('Another plugin serves the same resource')"
        )
        with small.second_plugin():
            until(page, second)
        until(page, f"{second} === false")
        mentions(page, "#log", "no other plugin of the resource is running")


def test_spread_device_is_shown_and_found(browser: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU of a phone is in its details, and the search finds the phones of a GPU."""
    for number in (128, 129):
        (tmp_path / f"renderD{number}").symlink_to("/dev/null")
    monkeypatch.setenv("AOSP_PLUGIN_SPREAD_DEVICES", f"{tmp_path}/renderD*")
    with running(5) as small:
        page = opened(browser, small)
        find(page, "#search").send_keys("renderd129", Keys.ENTER)
        until(page, "return document.querySelector('#detail h2')?.textContent === 'aosp_binder1'")
        mentions(page, "#detail", f"{tmp_path}/renderD129")
        show_table(page)
        shows(page, ".above .caption", "2 of 5 devices match")


def test_page_without_devices_shows_the_first_one(browser: Chrome) -> None:
    with running(0) as small:
        page = opened(browser, small)
        assert text(page, ".resource .empty").startswith("No devices.")
        small.add(0)
        until(page, "return document.querySelector('.total .value').textContent === '1'")
        assert not displayed(page, ".resource .empty")
        assert displayed(page, ".map canvas")


def test_healthy_node_has_no_problem_and_links_the_runbook_otherwise(
    browser: Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOSP_PLUGIN_RUNBOOK_URL", "https://wiki.example.com/runbook")
    with running(3) as small:
        page = opened(browser, small)
        fine = "No problems. aosp.io/binder: 3 of 3 devices are healthy."
        shows(page, "#problems", fine)
        assert script(page, "return document.title") == "phone-node-07 · aosp-device-plugin"
        small.remove(2)
        until(page, "return document.querySelector('#problems li') !== null")
        assert attribute(page, "#problems a", "href") == "https://wiki.example.com/runbook#missing"
        assert attribute(page, "#problems a", "rel") == "noopener noreferrer"
        small.add(2)
        until(page, "return document.querySelector('#problems').textContent === arguments[0]", fine)
