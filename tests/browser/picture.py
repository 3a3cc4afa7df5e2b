"""Reads the cells of the map from a screenshot."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from selenium.webdriver.common.by import By

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selenium.webdriver import Chrome

Color = tuple[int, int, int]

STATES = ("allocated", "free", "unknown", "unhealthy")


class Map(NamedTuple):
    """A screenshot of the map, and the position of its cells."""

    image: Image.Image
    pitch: int
    columns: int
    left: int
    top: int

    def cell(self, i: int) -> Image.Image:
        """Return the image of a cell."""
        x, y = self.left + i % self.columns * self.pitch, self.top + i // self.columns * self.pitch
        return self.image.crop((x, y, x + self.pitch, y + self.pitch))

    def middle(self, i: int) -> Color:
        """Return the color in the middle of a cell."""
        cell = self.cell(i)
        pixel = cell.getpixel((self.pitch // 2 - 1, self.pitch // 2))
        assert isinstance(pixel, tuple)
        return (int(pixel[0]), int(pixel[1]), int(pixel[2]))


def take_screenshot(browser: Chrome) -> Map:
    """Take a screenshot of the first map on the page."""
    canvas = browser.find_element(By.CSS_SELECTOR, ".map canvas")
    image = Image.open(io.BytesIO(canvas.screenshot_as_png)).convert("RGB")
    pitch, columns, left, top = (
        int(canvas.get_attribute(f"data-{name}") or "") for name in ("pitch", "columns", "left", "top")
    )
    return Map(image, pitch, columns, left, top)


def state_colors(browser: Chrome) -> Mapping[Color, str]:
    """Return the state of each color of the style sheet in the current theme."""
    script = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    states = {}
    for state in STATES:
        value = browser.execute_script(script, f"--{state}").removeprefix("#")
        states[(int(value[0:2], 16), int(value[2:4], 16), int(value[4:6], 16))] = state
    assert len(states) == len(STATES)
    return states


def shape(cell: Image.Image) -> tuple[int, ...]:
    """Return the shape in a cell: which pixels have the same color, regardless of the color."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(pixel, len(numbers)) for pixel in cell.get_flattened_data())
