"""The table of reasons: each has a row, and the order lets the reason that wins decide who may use the device."""

import re
from pathlib import Path

from aosp_plugin.binder.devices.health import REASONS, Reason


def test_each_reason_has_a_row_in_the_order_of_the_enum() -> None:
    assert [*REASONS] == [*Reason]


def test_reasons_that_close_a_device_to_all_pods_take_precedence() -> None:
    """Otherwise a missing device that is surplus as well would be open to the pod that has it."""
    opened = [REASONS[reason].open_to_owner for reason in Reason]
    assert opened == sorted(opened)


def test_the_runbook_names_the_reasons_that_keep_a_container_from_starting_again() -> None:
    runbook = (Path(__file__).parents[3] / "docs/runbook.md").read_text(encoding="utf-8")
    section = runbook.partition("### A container does not start again\n")[2].partition("\n### ")[0]
    row = next(line for line in section.split("\n") if "[reason]" in line)
    assert re.findall("`([a-z-]+)`", row) == [reason for reason in Reason if not REASONS[reason].open_to_owner]
