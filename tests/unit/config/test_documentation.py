"""docs/configuration.md."""

from pathlib import Path

from aosp_plugin.config.sources import load
from hack import configuration_docs
from tests.unit.config.tables import write


def test_page_is_up_to_date() -> None:
    page = configuration_docs.TARGET.read_text(encoding="utf-8")
    assert page == configuration_docs.page(), "run make docs"


def test_complete_example_is_a_configuration(file: Path) -> None:
    current, _ = load({}, {}, write(file, configuration_docs.EXAMPLE))
    assert len(current.resources) == 2
