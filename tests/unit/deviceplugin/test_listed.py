"""ListedDevices: IDs, slots, health and edits of listed device nodes."""

import pytest

from aosp_plugin.framework import ContainerEdits, Device, DeviceNode, ListedDevice, ListedDevices, Mount
from aosp_plugin.framework.errors import UnhealthyDeviceError, UnknownDeviceError
from aosp_plugin.framework.inventory import valid_devices
from tests.support import Clock

RESOURCE = "example.com/thing"
TTL = 300.0


class Host:
    """The devices that the next scan lists, and the backend that scans them."""

    def __init__(self, clock: Clock, *devices: str | ListedDevice) -> None:
        self.devices = list(devices)
        self.backend = ListedDevices(RESOURCE, lambda: self.devices, missing_device_ttl=TTL, clock=clock)
        self._clock = clock

    def scan(self, *, after: float = 0.0) -> list[Device]:
        """Scan after some seconds, and return the devices."""
        self._clock.now += after
        self.backend.scan()
        return self.backend.devices()


def test_id_is_path_below_dev_with_dashes(clock: Clock) -> None:
    """The devices are those of the last scan, in the order of the list."""
    paths = {"/dev/fuse": "fuse", "/dev/bus/usb/001/002": "bus-usb-001-002", "/run/devices/a": "run-devices-a"}
    host = Host(clock, *paths)
    assert host.backend.devices() == []
    assert host.scan() == [Device(device_id) for device_id in paths.values()]
    host.devices.append("/dev/c")
    assert len(host.backend.devices()) == len(paths)


def test_slots_are_devices_of_one_node(clock: Clock) -> None:
    host = Host(clock, ListedDevice("/dev/kvm", slots=3))
    assert host.scan() == [Device("kvm::0"), Device("kvm::1"), Device("kvm::2")]
    edits = ContainerEdits([DeviceNode("/dev/kvm", "/dev/kvm", "rw")], [])
    assert host.backend.allocate(["kvm::2"]) == edits
    assert host.backend.allocate(["kvm::0", "kvm::1"]) == edits
    with pytest.raises(UnknownDeviceError, match="'kvm::3' is unknown"):
        host.backend.allocate(["kvm::3"])


def test_container_gets_devices_in_requested_order_with_permissions_and_mounts(clock: Clock) -> None:
    shared, own = Mount("/run/gpu", "/run/gpu"), Mount("/etc/card", "/etc/card", read_only=False)
    host = Host(
        clock,
        ListedDevice("/dev/dri/card0", permissions="r", mounts=[shared, own]),
        ListedDevice("/dev/dri/card1", mounts=[shared]),
    )
    host.scan()
    assert host.backend.allocate(["dri-card1", "dri-card0"]) == ContainerEdits(
        [DeviceNode("/dev/dri/card1", "/dev/dri/card1", "rw"), DeviceNode("/dev/dri/card0", "/dev/dri/card0", "r")],
        [shared, own],
    )


def test_vanished_device_is_unhealthy_until_its_limit_is_over(clock: Clock) -> None:
    """The limit starts again if it returns."""
    host = Host(clock, "/dev/a", ListedDevice("/dev/b", reason="overheated"), ListedDevice("/dev/c", slots=0))
    remaining = host.devices[1:]
    overheated = Device("b", "overheated")
    for _ in range(2):
        host.devices = ["/dev/a", *remaining]
        assert host.scan(after=TTL - 1.0) == [Device("a"), overheated]
        host.devices = remaining
        assert host.scan(after=TTL - 1.0) == [overheated, Device("a", "missing")]
    for device_id, reason in (("a", "missing"), ("b", "overheated")):
        with pytest.raises(UnhealthyDeviceError, match=f"'{device_id}' is unhealthy: {reason}"):
            host.backend.allocate([device_id])
    assert host.scan(after=TTL - 1.0) == [overheated, Device("a", "missing")]
    assert host.scan(after=1.0) == [overheated]
    with pytest.raises(UnknownDeviceError):
        host.backend.allocate(["a"])


def test_first_of_two_devices_with_the_same_id_is_allocated(clock: Clock) -> None:
    """The framework skips the second one, and logs that. If the first one is missing, the second one has its ID."""
    host = Host(clock, "/dev/a/b", "/dev/a-b", ListedDevice("/dev/kvm", slots=2), "/dev/kvm::1")
    devices, skipped = valid_devices(host.scan())
    assert [*devices.values()] == [Device("a-b"), Device("kvm::0"), Device("kvm::1")]
    assert skipped.keys() == {"a-b", "kvm::1"}
    assert host.backend.allocate(["a-b"]).devices[0].host_path == "/dev/a/b"
    host.devices = ["/dev/a-b"]
    devices, _ = valid_devices(host.scan())
    assert devices["a-b"] == Device("a-b")
    assert host.backend.allocate(["a-b"]).devices[0].host_path == "/dev/a-b"
