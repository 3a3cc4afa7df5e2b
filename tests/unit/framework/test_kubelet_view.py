"""When a plugin registers again because of what the kubelet has."""

import pytest

from aosp_plugin.framework.conditions import KUBELET_DISAGREES, Conditions
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import Confirmation
from tests.support import RESOURCE, causes


@pytest.fixture
def confirmation() -> Confirmation:
    return Confirmation(RESOURCE, Conditions(), Metrics())


def disagreement(confirmation: Confirmation) -> str:
    """Return the cause of the condition; empty if there is none."""
    return causes(confirmation, KUBELET_DISAGREES)


def bad(confirmation: Confirmation, now: float) -> bool:
    """Record a round in which the kubelet has no device."""
    return confirmation.compare(0, 3, now)


def test_one_round_with_fewer_devices_is_not_enough(confirmation: Confirmation) -> None:
    """The kubelet may not have processed a new list yet. A good round in between starts the count again."""
    for start in (0.0, 100.0):
        assert not bad(confirmation, start)
        assert (disagreement(confirmation), confirmation.in_doubt) == ("", True)
        assert not confirmation.compare(3, 3, start + 5)
        assert not confirmation.in_doubt
    assert not bad(confirmation, 200)
    assert bad(confirmation, 205)
    assert disagreement(confirmation) == "the kubelet has 0 of 3 healthy devices"
    assert str(confirmation) == "0 of 3 healthy devices allocatable"


def test_more_devices_than_published_are_no_problem(confirmation: Confirmation) -> None:
    """Another plugin may have published more."""
    assert not any(confirmation.compare(4, 3, now) for now in range(10))
    assert (disagreement(confirmation), confirmation.allocatable, confirmation.published) == ("", 4, 3)


@pytest.mark.parametrize("end", ["it has all devices", "it has those of a later plugin"])
def test_the_kubelet_lacks_devices_until_it_has_all_although_the_number_is_unknown_meanwhile(
    confirmation: Confirmation, end: str
) -> None:
    """A registration alone does not prove that it has them."""
    assert [bad(confirmation, now) for now in (0, 5, 7)] == [False, True, False]
    for _ in range(2):
        confirmation.unavailable("no answer within 2 s")
        assert disagreement(confirmation)
        bad(confirmation, 9)
    if end == "it has all devices":
        assert not confirmation.compare(3, 3, 12)
        assert str(confirmation) == "3 of 3 healthy devices allocatable"
    else:
        confirmation.agree()
    assert not disagreement(confirmation)


def test_the_number_of_devices_is_a_metric_while_it_is_known() -> None:
    metrics = Metrics()
    confirmation = Confirmation(RESOURCE, Conditions(), metrics)
    confirmation.record(2, 3)
    series = ("device_plugin_kubelet_allocatable", {"resource": RESOURCE})
    assert metrics.registry.get_sample_value(*series) == 2
    confirmation.unavailable("no answer within 2 s")
    assert metrics.registry.get_sample_value(*series) is None


def test_pause_between_registrations(confirmation: Confirmation) -> None:
    """It also lasts if the kubelet has all devices meanwhile: two plugins may take turns."""
    assert [now for now in range(0, 300, 5) if bad(confirmation, now)] == [5, 125, 245]
    assert not confirmation.compare(3, 3, 300)
    assert [bad(confirmation, now) for now in (305, 310, 365)] == [False, False, True]


def test_kubelet_that_does_not_answer_is_no_problem(confirmation: Confirmation) -> None:
    """The round before no longer counts, and the reason is shown."""
    bad(confirmation, 0)
    confirmation.unavailable("it is too old")
    assert not bad(confirmation, 5)
    confirmation.unavailable("it is too old")
    assert (confirmation.allocatable, disagreement(confirmation), confirmation.in_doubt) == (None, "", False)
    assert str(confirmation) == "the kubelet's number of devices is unknown: it is too old"
