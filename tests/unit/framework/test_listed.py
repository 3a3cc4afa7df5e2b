"""ListedDevices: IDs, slots, health and edits of listed device nodes."""

from collections.abc import Sequence

from aosp_plugin.framework import ContainerEdits, Device, DeviceNode, ListedDevice, ListedDevices, Mount
from aosp_plugin.framework.inventory import valid_devices
from aosp_plugin.framework.listed import FoundListed

RESOURCE = "example.com/thing"


class Host:
    """The devices that the next scan lists, and the backend that scans them."""

    def __init__(self, *devices: str | ListedDevice) -> None:
        self.devices = list(devices)
        self._backend = ListedDevices(RESOURCE, lambda: self.devices)
        self._found = FoundListed()

    def scan(self) -> Sequence[Device]:
        """Scan, and return the devices."""
        self._found = self._backend.scan()
        return self._found.devices

    def allocate(self, *ids: str) -> ContainerEdits:
        """Return what a container gets for devices of the last scan."""
        return self._backend.allocate(self._found, ids)


def test_id_is_path_below_dev_with_dashes() -> None:
    """In the order of the list."""
    paths = {"/dev/fuse": "fuse", "/dev/bus/usb/001/002": "bus-usb-001-002", "/run/devices/a": "run-devices-a"}
    host = Host(*paths)
    assert host.scan() == [Device(device_id) for device_id in paths.values()]


def test_slots_are_devices_of_one_node() -> None:
    host = Host(ListedDevice("/dev/kvm", slots=3))
    assert host.scan() == [Device("kvm::0"), Device("kvm::1"), Device("kvm::2")]
    edits = ContainerEdits([DeviceNode("/dev/kvm", "/dev/kvm", "rw")], [])
    assert host.allocate("kvm::2") == host.allocate("kvm::0", "kvm::1") == edits


def test_container_gets_devices_in_requested_order_with_permissions_and_mounts() -> None:
    shared, own = Mount("/run/gpu", "/run/gpu"), Mount("/etc/card", "/etc/card", read_only=False)
    host = Host(
        ListedDevice("/dev/dri/card0", permissions="r", mounts=[shared, own]),
        ListedDevice("/dev/dri/card1", mounts=[shared]),
    )
    host.scan()
    assert host.allocate("dri-card1", "dri-card0") == ContainerEdits(
        [DeviceNode("/dev/dri/card1", "/dev/dri/card1", "rw"), DeviceNode("/dev/dri/card0", "/dev/dri/card0", "r")],
        [shared, own],
    )


def test_device_that_is_no_longer_listed_is_removed() -> None:
    host = Host("/dev/a", ListedDevice("/dev/b", reason="overheated"), ListedDevice("/dev/c", slots=0))
    assert host.scan() == [Device("a"), Device("b", "overheated")]
    host.devices = []
    assert host.scan() == []


def test_first_of_two_devices_with_the_same_id_is_allocated() -> None:
    """The framework skips the second one, and logs that. If the first one is gone, the second one has its ID."""
    host = Host("/dev/a/b", "/dev/a-b", ListedDevice("/dev/kvm", slots=2), "/dev/kvm::1")
    devices, skipped = valid_devices(host.scan())
    assert [*devices.values()] == [Device("a-b"), Device("kvm::0"), Device("kvm::1")]
    assert skipped.keys() == {"a-b", "kvm::1"}
    assert host.allocate("a-b").devices[0].host_path == "/dev/a/b"
    host.devices = ["/dev/a-b"]
    devices, _ = valid_devices(host.scan())
    assert devices["a-b"] == Device("a-b")
    assert host.allocate("a-b").devices[0].host_path == "/dev/a-b"
