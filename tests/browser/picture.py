"""What is drawn: the map's cells as they are in a screenshot."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from selenium.webdriver.common.by import By

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selenium.webdriver import Chrome

Colour = tuple[int, int, int]

STATES = ("allocated", "free", "unknown", "unhealthy", "leaked")


class Map(NamedTuple):
    """The picture of a map, and where its cells are."""

    image: Image.Image
    pitch: int
    columns: int
    left: int
    top: int

    def cell(self, i: int) -> Image.Image:
        """Return the picture of one cell."""
        x, y = self.left + i % self.columns * self.pitch, self.top + i // self.columns * self.pitch
        return self.image.crop((x, y, x + self.pitch, y + self.pitch))

    def middle(self, i: int) -> Colour:
        """Return the colour in the middle of a cell."""
        cell = self.cell(i)
        pixel = cell.getpixel((self.pitch // 2 - 1, self.pitch // 2))
        assert isinstance(pixel, tuple)
        return (int(pixel[0]), int(pixel[1]), int(pixel[2]))


def photograph(browser: Chrome) -> Map:
    """Return the first map on the page as it is drawn."""
    canvas = browser.find_element(By.CSS_SELECTOR, ".map canvas")
    image = Image.open(io.BytesIO(canvas.screenshot_as_png)).convert("RGB")
    pitch, columns, left, top = (
        int(canvas.get_attribute(f"data-{name}") or "") for name in ("pitch", "columns", "left", "top")
    )
    return Map(image, pitch, columns, left, top)


def colours(browser: Chrome) -> Mapping[Colour, str]:
    """Return the state that each colour of the style sheet stands for, in the theme that is on."""
    script = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    found = {}
    for state in STATES:
        value = browser.execute_script(script, f"--{state}").removeprefix("#")
        found[(int(value[0:2], 16), int(value[2:4], 16), int(value[4:6], 16))] = state
    assert len(found) == len(STATES)
    return found


def shape(cell: Image.Image) -> tuple[int, ...]:
    """Return the picture of a cell without its colours: which pixels have the same one."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(pixel, len(numbers)) for pixel in cell.get_flattened_data())
