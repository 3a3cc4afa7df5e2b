"""The page in a browser. Its elements are read by scripts, at one moment, because a new report replaces them."""

from typing import Any

from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser.node import PATIENCE

FIRST = "document.querySelector(arguments[0])"
"""The first element of a selector."""
MAP = """
const canvas = document.querySelector('.map canvas'), context = canvas.getContext('2d');
const box = canvas.getBoundingClientRect(), style = getComputedStyle(document.documentElement);
const [pitch, columns, left, top] = ['pitch', 'columns', 'left', 'top'].map((name) => Number(canvas.dataset[name]));
const at = (i) => [left + (i % columns) * pitch, top + Math.floor(i / columns) * pitch];
const pixels = (i) => {
  const {data} = context.getImageData(...at(i), pitch, pitch);
  return Array.from({length: pitch * pitch}, (_, n) => data.slice(4 * n, 4 * n + 4).join());
};
const colors = {};
for (const state of ['allocated', 'free', 'unknown', 'unhealthy']) {
  const [, r, g, b] = style.getPropertyValue(`--${state}`).trim().match(/^#(..)(..)(..)$/);
  colors[[r, g, b].map((part) => parseInt(part, 16)).join() + ',255'] = state;
}
const stateOf = (i) => {
  const [x, y] = at(i), middle = Math.floor(pitch / 2);
  return colors[context.getImageData(x + middle - 1, y + middle, 1, 1).data.join()] ?? 'dimmed';
};
"""
"""Script that reads the cells of the map: ``pixels(i)``, and the state with the color of the cell, ``stateOf(i)``."""


class Page:
    """The page of a node."""

    def __init__(self, browser: Chrome, url: str) -> None:
        """Open the page, and wait until it is drawn."""
        self.browser = browser
        browser.get("about:blank")
        browser.get_log("browser")  # type: ignore[no-untyped-call]
        self.emulate()
        browser.get(url)
        self.until("document.documentElement.dataset.ready === 'true'")

    def emulate(self, **features: str) -> None:
        """Emulate media features, the preferences of a user."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def console(self) -> list[Any]:
        """Return the messages of the console since the last call."""
        messages: list[Any] = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return messages

    def get(self, expression: str, *arguments: Any, script: str = "") -> Any:
        """Return the value of an expression, after a script."""
        return self.browser.execute_script(f"{script};return {expression}", *arguments)

    def until(self, expression: str, *arguments: Any, script: str = "") -> None:
        """Wait until an expression is true."""
        try:
            WebDriverWait(self.browser, PATIENCE, 0.02).until(lambda _: self.get(expression, *arguments, script=script))
        except TimeoutException as error:
            raise AssertionError(
                f"never true: {expression} {arguments} at {self.browser.current_url}; console: {self.console()}"
            ) from error

    def find(self, selector: str) -> WebElement:
        """Return an element that no report replaces, for keys and clicks like those of a user."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def press(self, selector: str) -> None:
        """Click an element that a new report may replace."""
        self.get(f"{FIRST}.click()", selector)

    def texts(self, selector: str) -> list[str]:
        """Return the text of all elements of a selector."""
        each = "(each) => (each.innerText ?? each.textContent).trim()"
        found: list[str] = self.get(f"[...document.querySelectorAll(arguments[0])].map({each})", selector)
        return found

    def shows(self, selector: str, expected: str) -> None:
        """Wait until the first element of a selector has a text."""
        self._reads(selector, "=== arguments[1]", expected)

    def mentions(self, selector: str, part: str) -> None:
        """Wait until the text of the first element of a selector contains a part."""
        self._reads(selector, ".includes(arguments[1])", part)

    def _reads(self, selector: str, condition: str, expected: str) -> None:
        text = f"({FIRST}?.textContent ? {FIRST}.innerText ?? '' : '').trim()"
        try:
            self.until(f"{text}{condition}", selector, expected)
        except AssertionError as error:
            raise AssertionError(f"{selector} shows {self.get(text, selector)!r}, not {expected!r}") from error

    def attribute(self, selector: str, name: str) -> str | None:
        """Return an attribute of the first element of a selector."""
        found: str | None = self.get(f"{FIRST}.getAttribute(arguments[1])", selector, name)
        return found

    def displayed(self, selector: str) -> bool:
        """Return whether the first element of a selector is visible."""
        visible: bool = self.get(f"{FIRST}.checkVisibility()", selector)
        return visible

    def drawn(self, count: int) -> list[str]:
        """Return the state of each cell by its color."""
        states: list[str] = self.get(f"Array.from({{length: {count}}}, (_, i) => stateOf(i))", script=MAP)
        return states
