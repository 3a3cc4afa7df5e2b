"""Chromium for the tests of the page: finding it, getting it where that is easy, and starting it so that it is quiet.

Run as a program it installs Debian's, where there is apt-get and it is root who asks; elsewhere it says what to do.
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
ABSENT = "there is no chromium with a chromedriver: on Debian or Ubuntu, apt-get install chromium chromium-driver"
WINDOW = (1500, 2100)
"""Width and height in pixels."""
QUIET = (
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
    """Where they are."""

    browser: str
    driver: str


def find() -> Programs | None:
    """Return the browser and its driver; None where one of them is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return Programs(browser, driver) if browser and driver else None


@contextlib.contextmanager
def started(programs: Programs) -> Iterator[Chrome]:
    """Run the browser, with a profile of its own, while the context lasts."""
    options = ChromeOptions()
    options.binary_location = programs.browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for argument in (*QUIET, f"user-data-dir={profile}"):
            options.add_argument(f"--{argument}")
        browser = Chrome(options=options, service=ChromeService(programs.driver))
        try:
            yield browser
        finally:
            browser.quit()


def main() -> None:
    """Install what is missing, or say that the tests will be skipped."""
    if find():
        return
    why = "though the packages are installed"
    try:
        packages.install(PACKAGES)
    except packages.MissingError as error:
        why = str(error)
    if not find():
        say(f"# the tests of the page are skipped: {ABSENT} ({why})")


if __name__ == "__main__":
    main()
