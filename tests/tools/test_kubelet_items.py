"""The sets of items of the tests with a real kubelet: a name that no item has would silently select nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.kubelet import runtime_suite, scenarios_dra
from tests.e2e.kubelet.runtimes import COMBINATIONS
from tests.e2e.kubelet.suite import CHAPTERS
from tests.e2e.kubelet.version_suite import SETS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

ALL = [*CHAPTERS, *(chapter for found in COMBINATIONS.values() for chapter in runtime_suite.chapters(found))]
EXISTING = {
    **{chapter.name: {item.name for item in chapter.items} for chapter in ALL},
    "scenarios": {scenario.name for scenario in scenarios_dra.ALL},
}
"""The names of items by chapter."""
EITHER = {"by_field", "by_annotation"}
"""Each is in one of the chapters about CDI, whose names are a set for both."""


@pytest.mark.parametrize(
    "names", [*SETS.values(), runtime_suite.NAMES], ids=[*(f"--items {name}" for name in SETS), "--runtime"]
)
def test_each_selected_item_exists(names: Mapping[str, AbstractSet[str]]) -> None:
    missing = {(chapter, name) for chapter, found in names.items() for name in found - EITHER - EXISTING[chapter]}
    assert missing == set()
