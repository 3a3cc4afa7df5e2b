"""What is computed from the measurements of the scheduler, and the requests of its pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.fleet.objects import RESOURCE
from tests.e2e.scheduler import run


def test_rate_ignores_a_slow_beginning_and_end() -> None:
    middle = [100 + number / 50 for number in range(100)]
    assert run.middle_rate([*range(10), *middle[10:90], *range(1000, 1010)]) == pytest.approx(50)


@pytest.mark.parametrize("times", [[], [1.0, 2.0], [1.0] * 20])
def test_rate_of_too_few_or_simultaneous_events_is_zero(times: list[float]) -> None:
    assert run.middle_rate(times) == 0


def pods(*nodes: str) -> list[dict[str, Any]]:
    return [{"spec": {"nodeName": node} if node else {}} for node in nodes]


def claims(*devices: str) -> list[dict[str, Any]]:
    results = [dict(zip(("pool", "device"), device.split("/"), strict=True)) for device in devices]
    return [{"status": {"allocation": {"devices": {"results": [result]}}}} for result in results]


def test_allocations_of_different_devices_are_right() -> None:
    assert not run.wrong(pods("a", "a", ""), claims("a/phone1", "a/phone2"))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("a/phone1", "a/phone1"), "allocated twice"),
        (("a/phone1",), "2 pods are bound, with 1 devices"),
    ],
)
def test_wrong_allocations_are_found(devices: tuple[str, ...], expected: str) -> None:
    assert expected in run.wrong(pods("a", "a"), claims(*devices))


@pytest.mark.parametrize("request_", run.REQUESTS)
def test_pod_requests_what_it_is_measured_with(request_: str) -> None:
    spec = run.pod(request_, "name")["spec"]
    resources = spec["containers"][0]["resources"]
    assert (RESOURCE in resources["limits"]) is (request_ in {"device-plugin", "extended-resource"})
    assert ("claims" in resources) is ("resourceClaims" in spec) is (request_ == "claim")
