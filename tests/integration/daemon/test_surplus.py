"""What the kubelet's podresources API says about allocated devices, as their backend gets it."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.found_devices import FoundDevices, HostState, PhoneState, ScanInput
from aosp_plugin.binder.devices.sets import PhoneLayout
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.allocations import AllocationWatch
from aosp_plugin.daemon.device_records import DeviceRecord, DeviceRecords
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.record_store import Others
from aosp_plugin.framework.podresources_client import Allocations, Owner, PodResources

PHONE = "aosp.io/phone"
OWNER = (Owner("games", "phone-1", "android"),)
OWNERS = {PHONE: {"phone7": OWNER}}


class Kubelet:
    """A client of the API with the answers of a test."""

    def __init__(self, answers: list[Allocations], *, enabled: bool = True) -> None:
        self._answers = answers
        self.enabled = enabled

    async def query(self, _others: Mapping[str, Collection[str]]) -> Allocations:
        """Return the next answer."""
        return self._answers.pop(0) if self.enabled else Allocations("disabled")


async def ignore(_resources: Collection[str], _claims: Others) -> None:
    """Let the former resources have no plugin."""


async def remove_none(_records: Sequence[DeviceRecord]) -> bool:
    """Let no CDI spec be stale."""
    return True


class Release:
    """A backend without devices but surplus ones, and what asks the kubelet for it."""

    def __init__(self, directory: Path, kubelet: Kubelet, *surplus: str, api: Api = Api.DEVICE_PLUGIN) -> None:
        self.backend = BinderBackend(Host(), Resource(resource_name=PHONE, api=api), cdi_dir="/none")
        self.rescans: list[str] = []
        phones = {phone: PhoneLayout().set_of(phone) for phone in surplus}
        found = FoundDevices(sets=phones, state=HostState(phones=PhoneState(frozenset())) if surplus else HostState())
        client, records = cast("PodResources", kubelet), DeviceRecords(str(directory), "", "")
        backends = {PHONE: self.backend}
        self.watch = AllocationWatch(
            backends,
            lambda _: found,
            client,
            records,
            self.rescans.append,
            lambda: Others((), ()),
            ignore,
            remove_none,
            Conditions(),
        )

    async def ask(self, times: int = 1) -> list[tuple[bool, ScanInput]]:
        """Ask the kubelet; return whether it answered, and what the backend was told, each time."""
        with contextlib.closing(self.watch):
            return [(await self.watch.ask(), self.backend.input) for _ in range(times)]


async def test_allocated_phones_are_reported_while_the_kubelet_knows_its_pods(tmp_path: Path) -> None:
    answers = [
        Allocations(owners=OWNERS),
        Allocations("the kubelet has not answered yet"),
        Allocations(owners={PHONE: {}}, pods_known=False),
        Allocations(owners={PHONE: {}}),
    ]
    started = time.monotonic()
    asked = await Release(tmp_path, Kubelet(answers), "phone7").ask(4)
    assert [answered for answered, _ in asked] == [True, False, False, True]
    reports = [told.allocated for _, told in asked]
    assert [report and report.ids for report in reports] == [{"phone7"}, None, None, frozenset()]
    assert all(started <= report.asked <= time.monotonic() for report in reports if report is not None)


@pytest.mark.parametrize(("api", "held"), [(Api.DRA, {"phone1"}), (Api.DEVICE_PLUGIN, {"phone2"})])
async def test_devices_that_pods_have_through_the_other_api_are_reported(
    api: Api, held: set[str], tmp_path: Path
) -> None:
    """A kubelet that does not answer, or may not know its pods yet, frees no device. Replicas are one device."""
    both = Allocations(
        owners={PHONE: {"phone1::1": OWNER, "phone2": OWNER}},
        by_plugin={PHONE: frozenset({"phone1::1"})},
        by_claim={PHONE: frozenset({"phone2"})},
    )
    answers = [Allocations("no answer"), both, Allocations("no answer"), both._replace(pods_known=False), Allocations()]
    release, started = Release(tmp_path, Kubelet(answers), api=api), time.monotonic()
    asked = await release.ask(5)
    assert [({*told.held}, told.asked >= started) for _, told in asked] == [
        (set(), False),
        *[(held, True)] * 3,
        (set(), True),
    ]
    assert release.rescans == [PHONE, PHONE]


async def test_no_device_is_held_where_the_kubelet_cannot_be_asked(tmp_path: Path) -> None:
    started = time.monotonic()
    ((_, told),) = await Release(tmp_path, Kubelet([], enabled=False)).ask()
    assert (told.held, told.asked >= started) == ({}, True)
