"""The core set of the tests with a real kubelet: a name that no item has would silently select nothing."""

from __future__ import annotations

from tests.e2e.kubelet import scenarios_dra
from tests.e2e.kubelet.suite import CHAPTERS, CORE


def test_each_item_of_the_core_set_exists() -> None:
    existing = {chapter.name: {item.name for item in chapter.items} for chapter in CHAPTERS}
    existing["scenarios"] = {scenario.name for scenario in scenarios_dra.ALL}
    assert {name: names - existing[name] for name, names in CORE.items()} == {name: set() for name in CORE}
