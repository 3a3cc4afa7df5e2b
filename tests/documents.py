"""Excerpts of the documents that tests run: example configurations and the status output."""

import re
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def examples() -> dict[str, str]:
    """Return the example files in docs/phones.md by their bold title, such as "NUMA"."""
    blocks: dict[str, str] = {}
    title = ""
    for bold, example in re.findall(
        r"^\*\*(.+?)\.\*\*|^```yaml\n(.*?)^```", (PROJECT / "docs/phones.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        title = bold or title
        if example:
            assert title not in blocks, f"two examples below {title}"
            blocks[title] = example
    return blocks


def status() -> list[str]:
    """Return the lines of the status output in README.md, without the first one, which has the version and a time."""
    (sample,) = re.findall(
        r"^    phone-host-7: .*\n((?:    .*\n|\n)+)", (PROJECT / "README.md").read_text(), re.MULTILINE
    )
    return textwrap.dedent(sample).strip().splitlines()
