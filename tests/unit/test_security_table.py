"""docs/security.md: what it says shows a line is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_item_and_test_that_the_tables_name_is_there() -> None:
    """A function of ``tests/e2e/kernel`` or a module of ``tests``; a line with none would be a mere claim."""
    table = [line for line in (ROOT / "docs/security.md").read_text().splitlines() if line.startswith("| ")]
    shown = [line.rsplit(" | ", 1)[1] for line in table if not line.startswith("| attempt")]
    items = "".join(path.read_text() for path in (ROOT / "tests/e2e/kernel").glob("items_*.py"))
    known = {*re.findall(r"^(?:async )?def (\w+)\(", items, re.MULTILINE)}
    known |= {path.stem for path in (ROOT / "tests").rglob("test_*.py")} | {"make fuzz", "tests/unit/config"}
    assert len(shown) > 30
    assert {name for line in shown for name in re.findall(r"`([^`]+)`", line)} <= known
    assert [line for line in shown if "`" not in line] == ["(from source, not tested) |"]
