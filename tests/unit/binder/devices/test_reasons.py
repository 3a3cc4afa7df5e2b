"""The table of reasons: each has a row, and the order lets the reason that wins decide who may use the device."""

import itertools
import re
from pathlib import Path

from aosp_plugin.binder.devices.health import REASONS, Effect, HealthProblem, Reason


def test_each_reason_has_a_row_in_the_order_of_the_enum() -> None:
    assert [*REASONS] == [*Reason]


def test_reasons_are_in_the_order_of_their_effects() -> None:
    """Otherwise a missing device that is surplus as well would be open to the pod that has it."""
    effects = [REASONS[reason].effect for reason in Reason]
    assert effects == sorted(effects)


def test_a_deliberate_reason_hides_no_fault_with_the_same_effect() -> None:
    """No alert sees a deliberate one."""
    infos = [(info.effect, info.deliberate) for info in REASONS.values()]
    assert infos == sorted(infos)


def test_the_runbook_names_the_reasons_that_keep_a_container_from_starting_again() -> None:
    runbook = (Path(__file__).parents[4] / "docs/runbook.md").read_text(encoding="utf-8")
    section = runbook.partition("### A container does not start again\n")[2].partition("\n### ")[0]
    rows = [re.findall("`([a-z-]+)`", row) for row in section.split("\n") if "[reasons]" in row]
    assert rows == [
        [reason for reason in Reason if REASONS[reason].effect is effect] for effect in (Effect.CLOSED, Effect.IN_USE)
    ]
    assert {*itertools.chain(*rows)} == {each for each in Reason if not HealthProblem(each, "").open_to_owner}
