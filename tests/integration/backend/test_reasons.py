"""Who may use a device, for each reason for which it is unhealthy; a tmpfs, really mounted, stands in for binderfs."""

from typing import Any, NamedTuple

import pytest

from aosp_plugin.backend import found_devices
from aosp_plugin.backend.found_devices import Allocated
from aosp_plugin.backend.phones import SURPLUS_INTERVAL
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.devices.sets import DeviceSet
from aosp_plugin.config.values import Api
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.errors import AllocationError
from tests.backends import Served, started_phones
from tests.support import Clock
from tests.tmpfs_binderfs import Mounts

PHONE = "phone0"


class Allowed(NamedTuple):
    """What is allowed with a device that has a reason. No new pod gets it, whatever the reason is."""

    restart: bool
    """The pod that has the device starts its container again."""
    claim: bool
    """A claim to which the scheduler had allocated it is prepared."""
    spec: bool
    """The CDI spec has the device."""
    removal: bool = False
    """A phone that is free is removed."""


CLOSED = Allowed(restart=False, claim=False, spec=False)
OPEN = Allowed(restart=True, claim=True, spec=True)

EXPECTED = {
    Reason.FOREIGN_MOUNT: CLOSED,
    Reason.NOT_PROVISIONED: CLOSED,
    Reason.MISSING: CLOSED,
    Reason.INCOMPLETE: CLOSED,
    Reason.BINDERFS_UNAVAILABLE: CLOSED,
    Reason.NOT_A_DEVICE: CLOSED,
    Reason.NOT_BINDER: CLOSED,
    Reason.PROBE_FAILED: CLOSED,
    Reason.REQUIREMENT_MISSING: CLOSED,
    # Before the container starts again, the device is recreated. A claim finds it as it is.
    Reason.NOT_RECREATED: Allowed(restart=True, claim=False, spec=True),
    Reason.REPLACED: OPEN,
    Reason.NOT_IN_CDI_SPEC: OPEN,
    # Another pod has it, so neither a container of this resource nor another claim may.
    Reason.IN_USE_BY_OTHER_API: Allowed(restart=False, claim=False, spec=True),
    Reason.IN_USE_BY_OTHER_RESOURCE: Allowed(restart=False, claim=False, spec=True),
    Reason.NOT_RECORDED: OPEN,
    Reason.OFFERED_BY_OTHER_RESOURCE: OPEN,
    Reason.BEYOND_PER_DEVICE: OPEN,
    Reason.SURPLUS: Allowed(restart=True, claim=True, spec=True, removal=True),
}


def started(directory: Mounts, api: Api = Api.DEVICE_PLUGIN, count: int = 1, clock: Clock | None = None) -> Served:
    keys: dict[str, Any] = {} if api is Api.DRA else {"device_list": (DeviceList.CDI_CRI,)}
    return started_phones(directory.path, count, clock, api=api, **keys)


def give(reason: Reason, patch: pytest.MonkeyPatch) -> None:
    """Let each scan find this reason for the phone."""

    def problem(group: DeviceSet, *_arguments: object) -> HealthProblem | None:
        return HealthProblem(reason, str(reason)) if group.id == PHONE else None

    patch.setattr(found_devices, "problem", problem)
    patch.setattr(found_devices, "general_problem", problem)
    if reason in {Reason.IN_USE_BY_OTHER_API, Reason.IN_USE_BY_OTHER_RESOURCE}:
        held = {PHONE: HealthProblem(reason, str(reason))}
        patch.setattr(found_devices.HeldDevices, "problems", property(lambda _: held))


def succeeds(call: Any, *arguments: object) -> bool:
    try:
        call(*arguments)
    except AllocationError:
        return False
    return True


@pytest.mark.parametrize("reason", Reason)
def test_reason_decides_what_pods_may_do_with_the_device(
    directory: Mounts, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(directory)
    clock = Clock()
    give(reason, monkeypatch)
    backend = started(directory, clock=clock, count=0 if reason is Reason.SURPLUS else 1)
    (device,) = backend.found.devices
    assert (device.reason, device.healthy) == (reason, False)
    assert not succeeds(backend.allocate, [PHONE])
    restart = succeeds(backend.pre_start, [PHONE])
    assert device.open_to_owner == restart
    spec = any(PHONE in path.read_text(encoding="utf-8") for path in (directory.path.parent / "cdi").iterdir())
    clock.now += SURPLUS_INTERVAL + 1
    backend.tell(allocated=Allocated(frozenset(), clock.now))
    backend.update_host()
    removal = PHONE not in directory.mounted()
    if not removal:
        directory.unmount(PHONE)
    driver = started(directory, Api.DRA)
    assert [each.open_to_owner for each in driver.found.devices] == [spec]  # nobody is asked when a container starts
    claim = succeeds(driver.prepare, [PHONE], [])
    assert Allowed(restart=restart, claim=claim, spec=spec, removal=removal) == EXPECTED[reason]
