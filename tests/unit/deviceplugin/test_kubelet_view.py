"""When a plugin registers again because of what the kubelet has, and because another plugin has ended."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework.deviceplugin.kubelet_view import Confirmation
from aosp_plugin.framework.deviceplugin.other_plugins import Succession
from aosp_plugin.framework.sockets import OtherPlugin
from aosp_plugin.framework.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMINGS = Timings()

NOW = 10


@pytest.fixture
def confirmation() -> Confirmation:
    return Confirmation()


def bad(confirmation: Confirmation, now: float) -> bool:
    """Record a round in which the kubelet has no device."""
    return confirmation.compare(0, 3, now)


def test_one_round_with_fewer_devices_is_not_enough(confirmation: Confirmation) -> None:
    """The kubelet may not have processed a new list yet. A good round in between starts the count again."""
    for start in (0.0, 100.0):
        assert not bad(confirmation, start)
        assert (confirmation.problem, confirmation.in_doubt) == ("", True)
        assert not confirmation.compare(3, 3, start + 5)
        assert not confirmation.in_doubt
    assert not bad(confirmation, 200)
    assert bad(confirmation, 205)
    assert confirmation.problem == "the kubelet has 0 of 3 healthy devices"
    assert str(confirmation) == "0 of 3 healthy devices allocatable"


def test_more_devices_than_published_are_no_problem(confirmation: Confirmation) -> None:
    """Another plugin may have published more."""
    assert not any(confirmation.compare(4, 3, now) for now in range(10))
    assert (confirmation.problem, confirmation.allocatable, confirmation.published) == ("", 4, 3)


def test_problem_lasts_until_the_kubelet_has_all_devices(confirmation: Confirmation) -> None:
    """A registration alone does not prove that."""
    bad(confirmation, 0)
    assert bad(confirmation, 5)
    assert not bad(confirmation, 7)
    assert confirmation.problem
    assert not confirmation.compare(3, 3, 12)
    assert (confirmation.problem, str(confirmation)) == ("", "3 of 3 healthy devices allocatable")


def attempts(confirmation: Confirmation, until: float) -> Iterator[float]:
    """Yield the times of registrations with a kubelet that always has no device, and is asked every 5 s."""
    for now in range(0, int(until), 5):
        if bad(confirmation, now):
            yield now


def test_pause_between_registrations_doubles_up_to_its_limit(confirmation: Confirmation) -> None:
    times = list(attempts(confirmation, 3900))
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 5
    assert pauses == [15, 30, 60, 120, 240, 480, 600, 600, 600, 600]
    assert "next registration in" in confirmation.problem


@pytest.mark.parametrize("good_for", [20, TIMINGS.view_longest_pause])
def test_pause_is_short_again_after_a_long_time_with_all_devices(confirmation: Confirmation, good_for: float) -> None:
    """Otherwise two plugins that take turns would register again all the time."""
    *_, last = attempts(confirmation, 125)
    assert last == 110
    now = last + good_for
    assert not confirmation.compare(3, 3, now)
    assert not bad(confirmation, now)
    assert bad(confirmation, now) is (good_for == TIMINGS.view_longest_pause)
    assert bad(confirmation, last + 120) is (good_for != TIMINGS.view_longest_pause)


def test_kubelet_that_does_not_answer_is_no_problem(confirmation: Confirmation) -> None:
    """The state before is forgotten, and the reason is shown."""
    bad(confirmation, 0)
    bad(confirmation, 5)
    confirmation.unavailable("it is too old")
    assert (confirmation.allocatable, confirmation.problem, confirmation.in_doubt) == (None, "", False)
    assert str(confirmation) == "the kubelet's number of devices is unknown: it is too old"


def others(*numbers: int) -> list[OtherPlugin]:
    return [OtherPlugin(f"aosp-x-1-{number}.sock", number, 0) for number in numbers]


def test_end_of_a_later_plugin_is_confirmed_by_a_second_scan() -> None:
    succession = Succession()
    assert not succession.observe(5, others(7), NOW)
    assert not succession.observe(5, others(), NOW)
    assert succession.pending
    assert succession.observe(5, others(), NOW)
    assert not succession.observe(5, others(), NOW)


def test_plugin_is_overridden_while_there_is_a_later_one() -> None:
    succession = Succession()
    found = [others(3), others(3, 7), others(3), others(3)]
    overridden = []
    for scan in found:
        succession.observe(5, scan, NOW)
        overridden.append(succession.overridden)
    assert overridden == [False, True, True, False]


def test_plugin_that_registers_again_overrides_the_other_one() -> None:
    """As after a restart of the kubelet."""
    succession = Succession()
    overridden = []
    for own in (5, 9):
        succession.observe(own, others(7), NOW)
        overridden.append(succession.overridden)
    assert overridden == [True, False]


def test_later_plugin_that_registers_again_has_not_ended() -> None:
    succession = Succession()
    assert not succession.observe(5, others(3, 7), NOW)
    assert not succession.observe(5, others(3), NOW)
    assert not succession.observe(5, others(9), NOW)
    assert not succession.pending
    assert not succession.observe(5, others(3), NOW)
    assert succession.observe(5, others(3), NOW)


def test_later_plugin_is_recognized_after_the_clock_was_set_back() -> None:
    succession = Succession()
    assert not succession.observe(5, others(), NOW)
    assert not succession.observe(5, others(2), 3)
    assert not succession.observe(5, others(), 3)
    assert succession.observe(5, others(), 3)


def test_one_of_two_plugins_is_later_after_the_clock_was_set_back() -> None:
    """And publishes its devices. Here, 5 is the earlier one."""
    earlier, later = Succession(), Succession()
    earlier.observe(5, others(), NOW)
    for _ in range(2):
        earlier.observe(5, others(2), 3)
        later.observe(2, others(5), 3)
    assert (earlier.overridden, later.overridden) == (True, False)


def test_one_of_two_plugins_is_later_if_the_socket_with_the_lower_number_appears_last() -> None:
    """A slow plugin creates its socket after another one with a higher number has registered."""
    slow, fast = Succession(), Succession()
    fast.observe(6, others(), NOW)
    for _ in range(2):
        slow.observe(5, others(6), NOW)
        fast.observe(6, others(5), NOW)
    assert (slow.overridden, fast.overridden) == (True, False)


def test_end_of_an_earlier_plugin_does_not_count() -> None:
    """Nor does the end of a plugin that was later than an earlier registration of this one."""
    succession = Succession()
    assert not succession.observe(5, others(3), NOW)
    assert not any(succession.observe(5, others(), NOW) for _ in range(3))
    assert not succession.observe(5, others(7), NOW)
    assert not succession.observe(8, others(7), NOW)
    assert not any(succession.observe(8, others(), NOW) for _ in range(3))


def test_plugin_that_is_not_registered_has_nothing_to_lose() -> None:
    succession = Succession()
    assert not succession.observe(0, others(7), NOW)
    assert not any(succession.observe(0, others(), NOW) for _ in range(3))
