"""Other devices of a phone, ``shared_devices`` and ``spread_devices``, through backend, plugin and kubelet.

Devices are links to those of the kernel, so that no rights are required, except where a test makes device files.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.config.keys import SharedDevice
from aosp_plugin.framework.devices import DeviceNode
from aosp_plugin.framework.errors import UnhealthyDeviceError
from tests.backends import binder_backend, scan
from tests.support import DeviceDirectory, names

NULL = "/dev/null"


class Dri:
    """A directory with GPUs, which are links to devices of the kernel."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.pattern = f"{directory}/renderD*"

    def path(self, number: int) -> str:
        """Return the path of a GPU."""
        return f"{self.directory}/renderD{number}"

    def add(self, *numbers: int, device: str = NULL) -> None:
        """Create GPUs."""
        for number in numbers:
            os.symlink(device, self.path(number))

    def remove(self, *numbers: int) -> None:
        """Remove GPUs."""
        for number in numbers:
            os.unlink(self.path(number))


@pytest.fixture
def dri(tmp_path: Path) -> Dri:
    return Dri(tmp_path / "dri")


def phones(devices: DeviceDirectory, count: int, **keys: Any) -> BinderBackend:
    """Return a backend with this many devices, which has not scanned yet."""
    devices.add(*range(count))
    keys = {"shared_mounts": (), **keys}
    return binder_backend(devices.directory, cdi_dir=devices.directory.parent / "cdi", **keys)


def others(backend: BinderBackend, *ids: str) -> list[str]:
    """Return the paths of the devices that a container gets besides binder devices."""
    nodes = backend.allocate(ids).devices
    assert all(node.host_path == node.container_path for node in nodes if "binder" not in node.host_path)
    return [node.host_path for node in nodes if "binder" not in node.host_path]


# -- shared devices


def test_container_gets_all_devices_that_match_a_pattern(device_directory: DeviceDirectory, dri: Dri) -> None:
    """In natural order, each once, at the host's path; one that has another path in the container, there as well."""
    dri.add(9, 10)
    shared = (SharedDevice(path=dri.path(10)), dri.pattern, f"{dri.path(9)}:/dev/gpu")
    backend = phones(device_directory, 1, shared_devices=shared, permissions="rwm")
    scan(backend)
    paths = [(path, path) for path in (dri.path(10), dri.path(9))] + [(dri.path(9), "/dev/gpu")]
    nodes = [DeviceNode(host_path, path, "rwm") for host_path, path in paths]
    assert backend.allocate(["aosp_binder0"]).devices[1:] == nodes


@pytest.mark.parametrize("pattern", [True, False])
def test_missing_required_device_makes_every_device_unhealthy(
    device_directory: DeviceDirectory, dri: Dri, caplog: pytest.LogCaptureFixture, *, pattern: bool
) -> None:
    """An optional one does not. Both are logged when they are first missed."""
    caplog.set_level(logging.INFO)
    required = dri.pattern if pattern else dri.path(1)
    optional = str(dri.directory / "card0")
    shared = (SharedDevice(path=required, required=True), optional)
    backend = phones(device_directory, 3, shared_devices=shared)
    for _ in range(2):
        assert scan(backend) == dict.fromkeys(names(range(3)), "requirement-missing")
    assert {device.detail for device in backend.devices()} == {f"requirement-missing: {required}"}
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.directory}/renderD"):
        backend.allocate(["aosp_binder1"])
    dri.add(1)
    assert scan(backend) == dict.fromkeys(names(range(3)), "")
    assert others(backend, "aosp_binder1") == [dri.path(1)]
    dri.remove(1)
    assert scan(backend) == dict.fromkeys(names(range(3)), "requirement-missing")
    logged = [(record.levelname, vars(record)["path"]) for record in caplog.records if "not found" in record.msg]
    assert logged == [("WARNING", required), ("INFO", optional), ("WARNING", required)]


# -- spread devices


def test_each_device_has_one_of_the_spread_devices_by_its_number(device_directory: DeviceDirectory, dri: Dri) -> None:
    """A container with several devices gets that of each."""
    dri.add(128, 129, 130)
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,))
    scan(backend)
    assert [others(backend, name) for name in names(range(6))] == [[dri.path(128 + n % 3)] for n in range(6)]
    assert others(backend, *names([1, 2, 4])) == [dri.path(129), dri.path(130)]
    assert backend.spread_devices() == {dri.path(128 + n): names([n, n + 3]) for n in range(3)}


def test_lost_spread_device_concerns_its_devices_only(device_directory: DeviceDirectory, dri: Dri) -> None:
    """No other device moves, until SIGHUP or a restart spreads all over those that exist."""
    dri.add(128, 129, 130)
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,))
    scan(backend)
    dri.remove(129)
    assert scan(backend) == {
        name: "requirement-missing" if n % 3 == 1 else "" for n, name in enumerate(names(range(6)))
    }
    assert backend.devices()[1].detail == f"requirement-missing: {dri.path(129)}"
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.path(129)}"):
        backend.allocate(["aosp_binder4"])
    assert [others(backend, name) for name in names([0, 2, 3, 5])] == [[dri.path(128 + n % 3)] for n in (0, 2, 3, 5)]
    dri.add(129)
    assert set(scan(backend).values()) == {""}
    dri.remove(129)
    backend.reset()
    assert set(scan(backend).values()) == {""}
    assert [others(backend, name) for name in names(range(4))] == [[dri.path(n)] for n in (128, 130, 128, 130)]
    dri.add(129)
    assert set(scan(backend).values()) == {""}
    assert others(backend, "aosp_binder1") == [dri.path(129)], "another one is known now"


def test_devices_are_unhealthy_while_no_spread_device_is_known(device_directory: DeviceDirectory, dri: Dri) -> None:
    backend = phones(device_directory, 2, spread_devices=(dri.pattern,))
    assert set(scan(backend).values()) == {"requirement-missing"}
    assert backend.devices()[0].detail == f"requirement-missing: {dri.pattern}"
    assert backend.spread_devices() == {}
    dri.add(128)
    assert set(scan(backend).values()) == {""}
