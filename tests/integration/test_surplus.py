"""What the kubelet's podresources API says about allocated devices, as their backend gets it."""

import asyncio
import time
from collections.abc import Collection
from typing import cast

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.offered_phones import Allocated
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.allocations import report_allocations, report_once
from aosp_plugin.framework.podresources_client import Allocations, Owner, PodResources

PHONE = "aosp.io/phone"
OWNERS = {PHONE: {"phone7": (Owner("games", "phone-1", "android"),)}}


class Kubelet:
    """A client of the API with the answers of a test. It cancels the task that asks after the last one."""

    def __init__(self, answers: list[Allocations], *, enabled: bool = True) -> None:
        self._answers = answers
        self.enabled = enabled

    async def query(self) -> Allocations:
        """Return the next answer."""
        if not self.enabled:
            return Allocations("disabled")
        if not self._answers:
            raise asyncio.CancelledError
        return self._answers.pop(0)


class Backend:
    """A backend that keeps what is reported."""

    def __init__(self, *, has_surplus: bool, api: Api = Api.DEVICE_PLUGIN, undecided: bool = False) -> None:
        self.has_surplus = has_surplus
        self.api = api
        self.holds_undecided = undecided
        self.reports: list[Allocated | None] = []
        self.held: list[set[str]] = []

    def set_allocated(self, allocated: Allocated | None) -> None:
        """Keep the report."""
        self.reports.append(allocated)

    def set_held(self, ids: Collection[str]) -> bool:
        """Keep the report. The first one, and each that differs from the one before, changes the devices."""
        self.held.append({*ids})
        return self.held[-1] != (self.held[-2] if len(self.held) > 1 else set())


class Pauses(list[float]):
    """Pauses that pass at once."""

    async def __call__(self, seconds: float) -> None:
        """Keep the pause."""
        self.append(seconds)
        await asyncio.sleep(0)


async def reported(backend: Backend, *answers: Allocations) -> list[frozenset[str] | None]:
    """Return the IDs that the backend gets for each of these answers; None if they are unknown."""
    backends = {PHONE: cast("BinderBackend", backend)}
    rescans: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        await report_allocations(backends, cast("PodResources", Kubelet([*answers])), rescans.append, sleep=Pauses())
    return [None if report is None else report.ids for report in backend.reports]


async def test_allocated_phones_are_reported_while_the_kubelet_knows_its_pods() -> None:
    backend = Backend(has_surplus=True)
    answers = [
        Allocations(owners=OWNERS),
        Allocations("the kubelet has not answered yet"),
        Allocations(owners={PHONE: {}}, pods_known=False),
        Allocations(owners={PHONE: {}}),
    ]
    started = time.monotonic()
    assert await reported(backend, *answers) == [{"phone7"}, None, None, frozenset()]
    assert all(started <= report.asked <= time.monotonic() for report in backend.reports if report is not None)


async def test_kubelet_is_not_asked_without_surplus_phones() -> None:
    backend = Backend(has_surplus=False)
    assert await report_once({PHONE: cast("BinderBackend", backend)}, cast("PodResources", Kubelet([])), print)
    assert backend.reports == []


@pytest.mark.parametrize(("api", "held"), [(Api.DRA, {"phone1"}), (Api.DEVICE_PLUGIN, {"phone2"})])
async def test_devices_that_pods_have_through_the_other_api_are_reported(api: Api, held: set[str]) -> None:
    """A kubelet that does not answer, or may not know its pods yet, frees no device."""
    backend = Backend(has_surplus=False, api=api, undecided=True)
    backends = {PHONE: cast("BinderBackend", backend)}
    both = Allocations(by_plugin={PHONE: frozenset({"phone1"})}, by_claim={PHONE: frozenset({"phone2"})})
    answers = [Allocations("no answer"), both, Allocations("no answer"), both._replace(pods_known=False), Allocations()]
    kubelet = cast("PodResources", Kubelet(answers))
    rescans: list[str] = []
    while answers:
        await report_once(backends, kubelet, rescans.append)
    assert backend.held == [held, set()]
    assert rescans == [PHONE, PHONE]


async def test_no_device_is_held_where_the_kubelet_cannot_be_asked() -> None:
    backend = Backend(has_surplus=False, undecided=True)
    kubelet = cast("PodResources", Kubelet([], enabled=False))
    await report_once({PHONE: cast("BinderBackend", backend)}, kubelet, print)
    assert backend.held == [set()]
