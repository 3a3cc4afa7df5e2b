#!/usr/bin/env python3
"""Write the table of reasons in docs/runbook.md from the plugin's catalog: ``make docs``."""

from __future__ import annotations

from pathlib import Path

from aosp_plugin.report.catalog import REASONS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"

_HEAD = "| reason | the device is | first step |\n|---|---|---|\n"


def with_table(runbook: str) -> str:
    """Return the text of the runbook with the table as it has to be."""
    before, head, after = runbook.partition(_HEAD)
    table = f"\n{after}".index("\n\n")
    rows = [f"| [`{reason}`](#{reason}) | {title} | {action} |\n" for reason, (title, action) in REASONS.items()]
    return f"{before}{head}{''.join(rows)}{after[table:]}"


def main() -> None:
    """Write the file."""
    TARGET.write_text(with_table(TARGET.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
