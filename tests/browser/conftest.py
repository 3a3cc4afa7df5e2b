"""The browser for all tests of the page."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.e2e.common import packages
from tests.e2e.conftest import pytest_runtest_makereport  # noqa: F401 - CI accepts no skipped test

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
    "window-size=1500,2800",  # the whole page fits, because its header covers what is scrolled below it
)


def programs() -> list[str]:
    """Return the paths of the browser and of its driver, of which none may be missing."""
    names = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
    return [path for each in names if (path := next(filter(None, map(shutil.which, each)), None))]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Run a browser with a temporary profile. On a machine that cannot have one, the tests are skipped."""
    if len(programs()) < 2:
        packages.install(("chromium", "chromium-driver"))
    options = ChromeOptions()
    options.binary_location, driver = programs()
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile: Path = tmp_path_factory.mktemp("chromium")
    for argument in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    browser = Chrome(options=options, service=ChromeService(driver))
    yield browser
    browser.quit()
