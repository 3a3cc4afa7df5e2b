"""When a plugin registers again because of what the kubelet has."""

from collections.abc import Iterator

import pytest

from aosp_plugin.framework.resource_server import Confirmation


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


def test_pause_between_registrations(confirmation: Confirmation) -> None:
    """It also lasts if the kubelet has all devices meanwhile: two plugins may take turns."""
    assert list(attempts(confirmation, 300)) == [5, 125, 245]
    assert "next registration in" in confirmation.problem
    assert not confirmation.compare(3, 3, 300)
    assert not bad(confirmation, 305)
    assert not bad(confirmation, 310)
    assert bad(confirmation, 365)


def test_kubelet_that_does_not_answer_is_no_problem(confirmation: Confirmation) -> None:
    """The state before is forgotten, and the reason is shown."""
    bad(confirmation, 0)
    bad(confirmation, 5)
    confirmation.unavailable("it is too old")
    assert (confirmation.allocatable, confirmation.problem, confirmation.in_doubt) == (None, "", False)
    assert str(confirmation) == "the kubelet's number of devices is unknown: it is too old"
