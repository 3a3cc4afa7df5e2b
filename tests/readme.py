"""The README's example configurations, by the words in bold that stand before them."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def examples() -> dict[str, str]:
    """Return each whole file: "NUMA" to its text; a second one under the same words as "NUMA 2"."""
    found: dict[str, str] = {}
    title = ""
    for bold, example in re.findall(
        r"^\*\*(.+?)\.\*\*|^```yaml\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        title = bold or title
        if example:
            again = sum(name.startswith(title) for name in found)
            found[f"{title} {again + 1}" if again else title] = example
    return found
