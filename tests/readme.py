"""What the README shows: example configurations, by the words in bold that stand before them, and a status table."""

from __future__ import annotations

import re
import textwrap
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


def status() -> list[str]:
    """Return the lines of the status table below the first one, which tells version and time."""
    found = re.search(
        r"^    phone-host-7: .*?\n(.*?)^`--json`", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return textwrap.dedent(found[1]).strip().splitlines()
