#!/usr/bin/env python3
"""Write the first paragraph of each reason in docs/runbook.md from the plugin's catalog: ``make docs``."""

from __future__ import annotations

import textwrap
from pathlib import Path

from aosp_plugin.report.catalog import REASONS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"


def with_reasons(runbook: str) -> str:
    """Return the text of the runbook with the first paragraph of each reason as it has to be."""
    for reason, (title, action) in REASONS.items():
        before, heading, section = runbook.partition(f"### {reason}\n\n")
        _, *others = section.partition("\n\n")
        paragraph = textwrap.fill(f"{title[0].upper()}{title[1:]}. {action}", 140)
        runbook = "".join([before, heading, paragraph, *others])
    return runbook


def main() -> None:
    """Write the file."""
    TARGET.write_text(with_reasons(TARGET.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
