"""The page in a browser, with ten thousand devices of a running plugin."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from tests.browser.node import Node, running
from tests.browser.page import MAP, Page

pytestmark = pytest.mark.timeout(600)

COUNT = 10_000
MISSING = (317, 4242, 6001, 9999)
CHANGING = 7777
PODS = 8
DEVICES_PER_POD = 60


@pytest.fixture(scope="module")
def shared_node(browser: Chrome) -> Iterator[Node]:
    """Run a node with devices in every state."""
    with running(COUNT) as node:
        for number in range(PODS):
            node.admit(f"phone-{number}", DEVICES_PER_POD)
        node.remove(*MISSING)
        node.listed(COUNT - len(MISSING))
        node.reports(lambda report: report["counts"]["allocated"] > 0)
        yield node


@pytest.fixture
def node(shared_node: Node) -> Node:
    """Return the node, after the changes of the previous test are undone: tests run in any order."""
    if not (shared_node.directory / f"aosp_binder{CHANGING}").exists():
        shared_node.add(CHANGING)
    shared_node.reports(lambda report: report["devices"][CHANGING]["state"] == "free")
    return shared_node


@pytest.fixture
def page(browser: Chrome, node: Node) -> Page:
    """Open the page."""
    return Page(browser, node.url)


def set_theme(page: Page, theme: str) -> None:
    """Set the light or dark theme, and wait until the map is drawn in it."""
    page.emulate(prefers_color_scheme=theme)
    page.until("matchMedia(`(prefers-color-scheme: ${arguments[0]})`).matches", theme)
    page.until(f"![0, {COUNT - 2}].map(stateOf).includes('dimmed')", script=MAP)


def show_table(page: Page) -> None:
    page.find(".tab[data-view=table]").click()


def rows(page: Page) -> list[str]:
    """Return the devices of the rows that exist as elements."""
    return page.texts(".devices tbody td.device")


def selected(page: Page) -> str:
    """Return the selected device, as shown and as exposed to screen readers."""
    active = "document.getElementById(document.querySelector('.map').getAttribute('aria-activedescendant'))"
    role, label = page.get(f"['role', 'aria-label'].map((name) => {active}.getAttribute(name))")
    device: str = label.split(" · ")[0]
    assert role == "gridcell"
    page.shows("#detail h2", device)
    return device


# -- drawing


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_has_its_color_and_a_shape_of_its_own(page: Page, node: Node, theme: str) -> None:
    """The shapes distinguish the states without colors. Nothing covers the cells."""
    set_theme(page, theme)
    drawn, report = page.drawn(COUNT), node.report()
    assert drawn == [device["state"] for device in report["devices"]]
    counts = Counter(drawn)
    for state in ("free", "unhealthy"):
        assert counts[state] == report["counts"][state]
    shape = "pixels(i).map((pixel, _, all) => all.indexOf(pixel)).join()"
    shapes = page.get(f"Array.from({{length: {COUNT}}}, (_, i) => {shape})", script=MAP)
    by_state = set(zip(drawn, shapes, strict=True))
    assert len(by_state) == len({shape for _, shape in by_state}) == len(counts) == 3
    for i in (0, COUNT - 1):
        place = f"at({i}).map((place, n) => place + [box.left, box.top][n] + pitch / 2)"
        assert page.get(f"document.elementFromPoint(...{place}) === canvas", script=MAP)


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
const texts = [...document.querySelectorAll('body *')]
  .filter((element) => element.checkVisibility() && [...element.childNodes].some((node) => node.data?.trim()));
"""
"""Script that finds the elements with visible text, and their contrast (WCAG 2.2, success criterion 1.4.3)."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_requires(page: Page, theme: str) -> None:
    """Those of problems, counts, pods and an unhealthy device, and those of the table."""
    set_theme(page, theme)
    page.find("#search").send_keys(f"aosp_binder{MISSING[0]}", Keys.ENTER)
    page.mentions("#detail", "Unhealthy")
    checked = []
    for view in ("map", "table"):
        page.press(f".tab[data-view={view}]")
        checked += page.get("texts.map((each) => [each.innerText, contrast(each), required(each)])", script=CONTRASTS)
    assert len(checked) > 100
    assert [(text, contrast) for text, contrast, required in checked if contrast < required] == []


def test_page_shows_node_counts_and_registration(page: Page, node: Node) -> None:
    """It loads from the plugin only. A violation of the content security policy would be logged to the console."""
    counts = node.report()["counts"]
    page.shows("#node", "phone-node-07")
    assert re.fullmatch(r"Up \d+ min", page.texts("#uptime")[0])
    page.shows(".resource h2", "aosp.io/binder")
    page.shows(".pill.note", f"The kubelet can allocate {COUNT - len(MISSING):,} of 10,000")
    page.shows(".total .value", "10,000")
    for state in ("allocated", "free", "unhealthy"):
        page.shows(f".stat.{state} .value", f"{counts[state]:,}")
    for selector in (".stat.unknown", ".stat.gone", ".note-line"):
        assert not page.displayed(selector)
    page.shows("#live", "Live")
    urls = page.get("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(urls) >= 9
    assert all(url.startswith(node.url) for url in urls)
    assert page.console() == []


def test_changes_of_a_device_are_drawn_and_logged_and_keep_the_selection(page: Page, node: Node) -> None:
    page.find("#search").send_keys("aosp_binder8888", Keys.ENTER, Keys.CONTROL + "a", Keys.DELETE)
    for change, state, logged in ((node.remove, "unhealthy", "missing"), (node.add, "free", "")):
        change(CHANGING)
        page.until(f"stateOf({CHANGING}) === '{state}'", script=MAP)
        page.mentions("#log li", f"changed=aosp_binder{CHANGING}:{logged}")
    assert page.texts("#log li")[0].startswith("devices changed")
    page.shows("#detail h2", "aosp_binder8888")


# -- input


def test_keys_move_the_selection_on_the_map(page: Page) -> None:
    """Focus selects the first cell. The selected cell is exposed to screen readers."""
    grid, focus = page.find(".map"), page.browser.switch_to
    columns = int(grid.get_attribute("aria-colcount") or "")
    assert int(grid.get_attribute("aria-rowcount") or "") * columns >= COUNT
    page.find("#search").click()
    for _ in range(60):
        if focus.active_element != grid:
            focus.active_element.send_keys(Keys.TAB)
    assert focus.active_element == grid
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
    page.mentions("#detail", "Select a device")
    page.until("location.search === ''")


def test_click_selects_a_cell_and_shows_its_pod(page: Page) -> None:
    place = "{clientX: box.left + left + 5.5 * pitch, clientY: box.top + top + 1.5 * pitch, bubbles: true}"
    events = "['pointermove', 'pointerdown'].map((name) => new PointerEvent(name, place))"
    page.get(f"{events}.forEach((event) => canvas.dispatchEvent(event))", script=f"{MAP} const place = {place}")
    assert selected(page) == f"aosp_binder{int(page.attribute('.map', 'aria-colcount') or '') + 5}"
    for part in ("Allocated", "phone-1", "default", "android"):
        page.mentions("#detail", part)


def test_search_finds_the_devices_of_a_pod(page: Page, node: Node) -> None:
    """Other cells are dimmed, and Enter steps through the matches."""
    search = page.find("#search")
    search.send_keys("phone-3")
    page.shows("#found", f"{DEVICES_PER_POD} found")
    assert Counter(page.drawn(COUNT)) == {"allocated": DEVICES_PER_POD, "dimmed": COUNT - DEVICES_PER_POD}
    search.send_keys(Keys.ENTER)
    page.mentions("#detail", "phone-3")
    first = selected(page)
    search.send_keys(Keys.ENTER)
    assert selected(page) != first
    search.send_keys(Keys.SHIFT + Keys.ENTER)
    assert selected(page) == first
    search.send_keys(Keys.CONTROL + "a", Keys.DELETE)
    page.shows("#found", "")
    search.send_keys(Keys.ESCAPE)
    page.find("body").send_keys(Keys.ESCAPE)
    assert page.drawn(COUNT) == [device["state"] for device in node.report()["devices"]]


@pytest.fixture
def screen(request: pytest.FixtureRequest, browser: Chrome) -> Iterator[None]:
    """Set the size of the screen, and whether it is that of a phone."""
    width, height, mobile = request.param
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("screen", [(1200, 600, False)], indirect=True)
def test_keys_bring_the_devices_into_view(screen: None, page: Page) -> None:
    top = "document.querySelector('.tabs').getBoundingClientRect().top"
    for keys in ("t", "m", f"/no such device{Keys.ENTER}"):
        page.get("scrollTo(0, document.body.scrollHeight)", script="document.activeElement.blur()")
        page.find("body").send_keys(keys)
        page.until(f"0 < {top} && {top} < innerHeight / 2")
    page.shows(".unmatched", "No device matches.")


@pytest.mark.parametrize("screen", [(420, 900, True)], indirect=True)
def test_narrow_screen_has_cards_and_a_sheet(screen: None, page: Page) -> None:
    """Nothing overflows, a tap shows the details where the eye is, and they can be closed."""
    assert page.get("document.documentElement.scrollWidth") == 420
    assert page.get("document.documentElement.scrollHeight") < 3000

    def box(selector: str) -> dict[str, float]:
        found: dict[str, float] = page.get(
            "document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
        )
        return found

    assert box(".devices tbody tr:not(.spacer)")["height"] < 80
    state, pod = box("td.state"), box("td.pod")
    beside = state["right"] <= pod["left"] or pod["right"] <= state["left"]
    assert beside or state["bottom"] <= pod["top"] or pod["bottom"] <= state["top"]
    assert not page.displayed("#detail")
    page.press(".devices tbody .link")
    sheet = box("#detail")
    assert (sheet["left"], sheet["right"], sheet["bottom"]) == (0, 420, 900)
    assert 200 < sheet["height"] < 700
    page.shows("#detail h2", f"aosp_binder{MISSING[0]}")
    page.press("#detail .close")
    assert not page.displayed("#detail")


def test_counts_filter_by_state(page: Page, node: Node) -> None:
    """Several filters combine, and a second click removes one."""
    unhealthy, allocated = page.find(".stat.unhealthy"), page.find(".stat.allocated")
    unhealthy.click()
    assert unhealthy.get_attribute("aria-pressed") == "true"
    assert [i for i, state in enumerate(page.drawn(COUNT)) if state != "dimmed"] == list(MISSING)
    allocated.click()
    either = [device for device in node.report()["devices"] if device["pods"] or device["reason"]]
    page.shows("#found", f"{len(either)} found")
    unhealthy.click()
    allocated.click()
    assert allocated.get_attribute("aria-pressed") == "false"
    page.shows("#found", "")


def test_table_lists_problems_first_and_all_devices(page: Page) -> None:
    """Only the visible rows exist, also after scrolling to the end. A device's name selects it."""
    show_table(page)
    page.shows(".above .caption", "All 10,000 devices, problems first")
    assert rows(page)[:4] == [f"aosp_binder{number}" for number in MISSING]
    assert all(re.fullmatch(r"\d+ (s|min)", age) for age in page.texts(".devices td.age")[:4])
    for place, row in (("scroller.scrollHeight", COUNT + 1), ("0", 2)):
        page.get(f"scroller.scrollTop = {place}", script="const scroller = document.querySelector('.scroll.table')")
        page.until('document.querySelector(`tr[aria-rowindex="${arguments[0]}"]`) !== null', row)
        assert len(rows(page)) < 60
    page.press(".devices tbody .link")
    assert selected(page) == f"aosp_binder{MISSING[0]}"


def test_table_sorts_by_a_column(page: Page) -> None:
    """The order is in the address."""
    show_table(page)
    for column, first, order in (
        ("device", "aosp_binder0", "device"),
        ("device", "aosp_binder9999", "-device"),
        ("pod", "aosp_binder0", "pod"),
    ):
        page.press(f"th.{column} button")
        page.until("new URLSearchParams(location.search).get('sort') === arguments[0]", order)
        assert rows(page)[0] == first
        sorts = page.get("[...document.querySelectorAll('th')].map((head) => head.ariaSort)")
        assert sorts.count("none") == len(sorts) - 1


def test_csv_has_the_rows_that_match(page: Page) -> None:
    """A value that begins like a formula is text."""
    save = """const create = URL.createObjectURL; window.saved = '';
        URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return create(blob); };
        HTMLAnchorElement.prototype.click = () => {};"""
    page.get("true", script=save)
    show_table(page)
    page.find("#search").send_keys("missing")
    page.press(".above button")
    page.until("window.saved !== ''")
    lines = page.get("window.saved").split("\r\n")
    assert lines[0].startswith('"device","state","reason"')
    assert [line.split(",")[0] for line in lines[1:-1]] == [f'"aosp_binder{number}"' for number in MISSING]
    page.get("import('/page/csv.js').then(({ saveCsv }) => saveCsv('a', [['=1', 'a\"b']]))")
    page.until("window.saved === arguments[0]", '"\'=1","a""b"\r\n')


# -- problems, pods and address


def test_problems_come_first(page: Page) -> None:
    """Reason in words, since when, the devices, and what to do; a device and its list are one click away."""
    problems = page.get("fetch('status').then((answer) => answer.json()).then(({ problems }) => problems)")
    urgent = len([problem for problem in problems if problem["severity"] != "notice"])
    page.shows("#problems h2", f"{urgent} problem{'s' * (urgent > 1)}")
    assert page.get("document.title") == f"({urgent}) phone-node-07 · aosp-device-plugin"
    first = " ".join(page.texts("#problems li")[0].split())
    assert first.startswith("4 devices missing: the file does not exist warning for ")
    assert "Create it again, or its binderfs" in first
    page.press("#problems li:nth-child(1) .tag")
    assert selected(page) == f"aosp_binder{MISSING[0]}"
    page.press("#problems li:nth-child(1) .link")
    assert rows(page) == [f"aosp_binder{number}" for number in MISSING]


def test_pods_are_grouped_by_namespace(page: Page) -> None:
    """Pods with problems come first, devices are ranges, and a namespace can be closed, which the address keeps."""
    page.find(".tab[data-view=pods]").click()
    page.shows(".resource .view .caption", f"{PODS} pods in 1 namespace")
    first, second = page.texts(".pod-row:not(.group)")[:2]
    for shown, parts in (
        (page.texts(".namespace")[0], ("default", f"{PODS} pods, {PODS * DEVICES_PER_POD} devices")),
        (first, ("phone-5", "1 missing", "aosp_binder300..359")),
        (second, ("phone-0", "aosp_binder0..59")),
    ):
        assert [part for part in parts if part not in shown] == []
    page.press(".pod-button")
    page.shows("#detail h2", "phone-5")
    page.mentions("#detail", "kubectl -n default describe pod phone-5")
    assert len(page.texts("#detail .device-list li")) == DEVICES_PER_POD
    page.press(".namespace")
    assert page.texts(".pod-button") == []
    page.until("location.search === '?view=pods&closed=default&pod=default/phone-5'")


def test_address_shows_the_same_again(browser: Chrome, node: Node) -> None:
    """Search, filter, view, order and selection are in a link that is sent."""
    query = "?q=binder&show=unhealthy,gone&view=table&sort=-device&resource=aosp.io/binder&device=aosp_binder317"
    page = Page(browser, f"{node.url}{query}")
    page.shows("#found", f"{len(MISSING)} found")
    assert rows(page)[0] == f"aosp_binder{max(MISSING)}"
    assert selected(page) == "aosp_binder317"
    assert page.attribute(".stat.unhealthy", "aria-pressed") == "true"
    page.until("location.search === arguments[0]", query)


def test_address_with_unknown_values_is_harmless(browser: Chrome, node: Node) -> None:
    query = "?view=x&sort=%3Cimg%3E&device=nope&resource=a.io/b&show=no&pod=a/%3Cimg%3E&closed=%2C"
    page = Page(browser, f"{node.url}{query}")
    page.shows("#found", "0 found")
    page.shows("#detail h2", "<img>")
    assert page.console() == []


def test_hidden_page_sends_no_requests(page: Page) -> None:
    """It continues when it is visible again."""
    hide = """window.requests = 0; window.hiddenNow = true;
        const fetch = window.fetch;
        window.fetch = (...all) => { window.requests += 1; return fetch(...all); };
        Object.defineProperty(document, 'hidden', { get: () => window.hiddenNow, configurable: true });"""
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    page.get(change, script=hide)
    page.shows("#live", "Paused")
    assert page.get("new Promise((resolve) => setTimeout(() => resolve(window.requests), 1500))") == 0
    page.get(change, script="window.hiddenNow = false")
    page.shows("#live", "Live")


# -- other nodes


def test_lost_connection_is_shown_and_restored(browser: Chrome) -> None:
    """The plugin hangs first, and then exits. The last data stays visible."""
    with running(8) as node:
        page = Page(browser, node.url)
        connection = "document.querySelector('#live').dataset.state === arguments[0]"
        node.plugin.signal(signal.SIGSTOP)
        page.until(connection, "lost")
        page.mentions("#lost", "Connection lost since")
        page.shows(".total .value", "8")
        node.plugin.signal(signal.SIGCONT)
        page.until(connection, "live")
        assert not page.displayed("#lost")
        node.plugin.signal(signal.SIGTERM)
        node.run(node.plugin.finish())
        page.until(connection, "lost")
        page.mentions("#lost", "the plugin does not answer")
        node.run(node.plugin.__aenter__())
        page.until(connection, "live")


def test_unknown_allocations_and_registration_are_explained(browser: Chrome) -> None:
    """Without the podresources API no device is called free."""
    with running(8, pod_resources=False) as node:
        page = Page(browser, node.url)
        page.mentions("#problems", "Which pod has which device is unknown: ")
        page.shows(".stat.unknown .value", "8")
        page.shows(".stat.unknown .name", "Healthy")
        page.mentions(".pill", "Registered with the kubelet")
        node.run(node.kubelet.stop())
        page.shows(".pill", "Not registered")
        page.until("document.querySelector('#problems li').className === 'error'")
        problem = page.texts("#problems li")[0]
        assert re.match(r"Not registered with the kubelet: .*kubelet.*\n+error\n+for \d+ s\n", problem)


def test_gone_device_of_a_pod_is_counted_and_found(browser: Chrome) -> None:
    """The pod has three devices: one is gone, one is missing, and one is healthy."""
    with running(8) as node:
        gone, missing, _ = node.admit("phone-1", 3)
        os.unlink(node.directory / gone)
        node.listed(7)
        node.plugin.signal(signal.SIGHUP)  # forgets missing devices
        node.reports(lambda report: report["counts"]["gone"] == 1)
        os.unlink(node.directory / missing)
        node.listed(6)
        page = Page(browser, node.url)
        page.shows(".stat.unhealthy .value", "1")
        page.shows(".total .value", "7")
        for key, count in (("allocated", 3), ("gone", 1), ("unhealthy", 1), ("free", 5)):
            page.shows(f".stat.{key} .value", str(count))
            page.find(f".stat.{key}").click()
            page.shows("#found", f"{count} found")
            page.find(f".stat.{key}").click()
        page.find(".stat.gone").click()
        show_table(page)
        assert rows(page) == [gone]
        page.mentions("#problems", "1 device gone, although pods have them")


def test_kubelet_without_the_devices_and_a_second_plugin_are_shown(browser: Chrome) -> None:
    """The kubelet's device manager hangs, so the device that appears does not reach it."""
    with running(8) as node:
        page = Page(browser, node.url)
        page.shows(".pill", "The kubelet can allocate 8 of 8")
        node.kubelet.faults.ignore_devices = True
        node.add(8)
        page.shows(".pill.bad", "The kubelet can allocate 8 of 9")
        page.mentions("#problems li.error", "fewer devices than the plugin published: the kubelet has")
        node.kubelet.faults.ignore_devices = False
        shown = "document.querySelector('#problems').textContent.includes('Another plugin serves the same resource')"
        second = node.serve()
        node.run(second.__aenter__())
        page.until(shown)
        node.run(second.__aexit__())
        page.until(f"!{shown}")
        page.mentions("#log", "no other plugin of the resource is running")


def test_spread_device_is_shown_and_found(browser: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU of a phone is in its details, and the search finds the phones of a GPU."""
    for number in (128, 129):
        (tmp_path / f"renderD{number}").symlink_to("/dev/null")
    monkeypatch.setenv("AOSP_PLUGIN_SPREAD_DEVICES", f"{tmp_path}/renderD*")
    with running(5) as node:
        page = Page(browser, node.url)
        page.find("#search").send_keys("renderd129", Keys.ENTER)
        page.shows("#detail h2", "aosp_binder1")
        page.mentions("#detail", f"{tmp_path}/renderD129")
        show_table(page)
        page.shows(".above .caption", "2 of 5 devices match")


def test_page_without_devices_shows_the_first_one_and_links_the_runbook_when_it_is_missing(
    browser: Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with healthy devices has no problem."""
    monkeypatch.setenv("AOSP_PLUGIN_RUNBOOK_URL", "https://wiki.example.com/runbook")
    with running(0) as node:
        page = Page(browser, node.url)
        page.mentions(".resource .empty", "No devices.")
        node.add(0)
        page.shows(".total .value", "1")
        assert (page.displayed(".resource .empty"), page.displayed(".map canvas")) == (False, True)
        fine = "No problems. aosp.io/binder: 1 of 1 devices are healthy."
        page.shows("#problems", fine)
        assert page.get("document.title") == "phone-node-07 · aosp-device-plugin"
        node.remove(0)
        page.mentions("#problems li", "missing")
        assert page.attribute("#problems a", "href") == "https://wiki.example.com/runbook#missing"
        assert page.attribute("#problems a", "rel") == "noopener noreferrer"
        node.add(0)
        page.shows("#problems", fine)
