"""What the kubelet's podresources API says about surplus phones, as their backend gets it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import pytest

from aosp_plugin.daemon.surplus import report_allocations
from aosp_plugin.framework.podresources_client import Allocations, Owner, PodResources

if TYPE_CHECKING:
    from aosp_plugin.backend import Allocated, BinderBackend

PHONE = "aosp.io/phone"
OWNERS = {PHONE: {"phone7": (Owner("games", "phone-1", "android"),)}}


class Kubelet:
    """A client of the API with the answers of a test. It cancels the task that asks after the last one."""

    def __init__(self, answers: list[Allocations]) -> None:
        self._answers = answers

    async def current(self) -> Allocations:
        """Return the next answer."""
        if not self._answers:
            raise asyncio.CancelledError
        return self._answers.pop(0)


class Backend:
    """A backend that keeps what is reported."""

    def __init__(self, *, has_surplus: bool) -> None:
        self.has_surplus = has_surplus
        self.reports: list[Allocated | None] = []

    def set_allocated(self, allocated: Allocated | None) -> None:
        """Keep the report."""
        self.reports.append(allocated)


async def reported(backend: Backend, *answers: Allocations) -> list[frozenset[str] | None]:
    """Return the IDs that the backend gets for each of these answers; None if they are unknown."""
    backends = {PHONE: cast("BinderBackend", backend)}
    with pytest.raises(asyncio.CancelledError):
        await report_allocations(backends, cast("PodResources", Kubelet([*answers])), interval=0.0)
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
    assert all(report.asked < started for report in backend.reports if report is not None)


async def test_kubelet_is_not_asked_without_surplus_phones() -> None:
    backend = Backend(has_surplus=False)
    backends = {PHONE: cast("BinderBackend", backend)}
    task = asyncio.create_task(report_allocations(backends, cast("PodResources", Kubelet([])), interval=0.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    assert backend.reports == []
