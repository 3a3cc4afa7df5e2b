"""Reads the README: its example configurations, by the bold heading before them, and its status table."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def examples() -> dict[str, str]:
    """Return each example by its heading, such as "NUMA"; a second one below the same heading is "NUMA 2"."""
    texts: dict[str, str] = {}
    title = ""
    for heading, example in re.findall(
        r"^\*\*(.+?)\.\*\*|^```yaml\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        title = heading or title
        if example:
            count = sum(name.startswith(title) for name in texts)
            texts[f"{title} {count + 1}" if count else title] = example
    return texts


def status() -> list[str]:
    """Return the lines of the status table without the first one, which has version and time."""
    table = re.search(
        r"^    phone-host-7: .*?\n(.*?)^`--json`", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert table is not None
    return textwrap.dedent(table[1]).strip().splitlines()
