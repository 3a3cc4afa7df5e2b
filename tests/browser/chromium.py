"""Chromium for the tests of the page: finds, installs and starts it.

Run as a program, it installs the packages of Debian if it may; otherwise it prints instructions.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.e2e.common import packages
from tests.e2e.common.report import say

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("chromium", "chromium-driver")
MISSING = "chromium and chromedriver are required: on Debian or Ubuntu, apt-get install chromium chromium-driver"
WINDOW = (1500, 2800)
"""Width and height in pixels: the whole page fits, because its header covers what is scrolled below it."""
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
    "force-device-scale-factor=1",
    "force-color-profile=srgb",
    f"window-size={WINDOW[0]},{WINDOW[1]}",
)


class Programs(NamedTuple):
    """Paths of the programs."""

    browser: str
    driver: str


def find() -> Programs | None:
    """Return the browser and its driver; None if one of them is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return Programs(browser, driver) if browser and driver else None


@contextlib.contextmanager
def started(programs: Programs) -> Iterator[Chrome]:
    """Run the browser with a temporary profile."""
    options = ChromeOptions()
    options.binary_location = programs.browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for argument in (*FLAGS, f"user-data-dir={profile}"):
            options.add_argument(f"--{argument}")
        browser = Chrome(options=options, service=ChromeService(programs.driver))
        try:
            yield browser
        finally:
            browser.quit()


def main() -> None:
    """Install the packages, or print that the tests will be skipped."""
    if find():
        return
    reason = "although the packages are installed"
    try:
        packages.install(PACKAGES)
    except packages.MissingError as error:
        reason = str(error)
    if not find():
        say(f"# the tests of the page are skipped: {MISSING} ({reason})")


if __name__ == "__main__":
    main()
