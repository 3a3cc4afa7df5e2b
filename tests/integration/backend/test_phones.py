"""Phones: device sets, container paths, replicas, NUMA nodes and CDI, over real directories of plain files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.config.keys import NumberedSets
from aosp_plugin.framework.devices import ContainerEdits, DeviceList
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError, UnknownDeviceError
from tests.backends import Served, binder_backend
from tests.support import names

PATHS = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
THREES = NumberedSets(size=3)
CDI_ONLY = (DeviceList.ENVVAR, DeviceList.CDI_CRI, DeviceList.CDI_ANNOTATIONS)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


def phones(dev: Path, **keys: Any) -> Served:
    """Return a backend after its first scan and host update; a container gets nothing but its binder devices."""
    defaults: dict[str, Any] = {"resource_name": "aosp.io/phone", "container_paths": PATHS, "shared_mounts": ()}
    backend = binder_backend(dev, cdi_dir=dev.parent / "cdi", **{**defaults, **keys})
    backend.scan()
    backend.update_host()
    return backend


def create(dev: Path, *numbers: int) -> None:
    for number in numbers:
        (dev / f"aosp_binder{number}").touch()


def mounts(edits: ContainerEdits, dev: Path) -> dict[str, str]:
    """Return the host path of each mount, relative to the device directory, by container path."""
    return {mount.container_path: os.path.relpath(mount.host_path, dev) for mount in edits.mounts}


def cdi_devices(dev: Path) -> dict[str, Any]:
    """Return the edits in the CDI spec by device name."""
    spec = json.loads((dev.parent / "cdi/aosp.io_phone.json").read_bytes())
    return {device["name"]: device["containerEdits"] for device in spec["devices"]}


def test_replicas_share_a_binder_device(dev: Path) -> None:
    """A container with two replicas of one device gets the binder device once."""
    create(dev, 1, 2)
    backend = phones(dev, replicas=3)
    assert list(backend.scan()) == [f"aosp_binder{number}::{replica}" for number in (1, 2) for replica in range(3)]
    assert backend.allocate(["aosp_binder2::0", "aosp_binder2::2"]) == backend.allocate(["aosp_binder2::1"])
    assert backend.prefer(["aosp_binder1::1", "aosp_binder2::0", "aosp_binder2::1"], [], 1) == ["aosp_binder2::0"]
    (dev / "aosp_binder2").unlink()
    unhealthy = [device_id for device_id, reason in backend.scan().items() if reason]
    assert unhealthy == [f"aosp_binder2::{replica}" for replica in range(3)]
    with pytest.raises(UnknownDeviceError, match="'aosp_binder1::3' is unknown"):
        backend.allocate(["aosp_binder1::3"])


def test_cdi_spec_has_the_edits_of_a_plain_allocation(dev: Path) -> None:
    """With CDI alone, the allocation has the names and the environment."""
    create(dev, *range(6))
    plain = phones(dev, sets=THREES).allocate(["aosp_binder3"])
    edits = phones(dev, sets=THREES, device_list=CDI_ONLY).allocate(["aosp_binder3"])
    assert edits.cdi_devices == ["aosp.io/phone=aosp_binder3"]
    assert list(edits.annotations.values()) == ["aosp.io/phone=aosp_binder3"]
    assert (edits.devices, edits.mounts, edits.environment) == ([], [], plain.environment)
    in_spec = cdi_devices(dev)["aosp_binder3"]
    assert [(node["hostPath"], node["path"], node["permissions"]) for node in in_spec["deviceNodes"]] == plain.devices
    assert [(mount["hostPath"], mount["containerPath"], True) for mount in in_spec["mounts"]] == plain.mounts


def test_cdi_spec_is_removed_with_its_last_device_and_not_at_the_end(dev: Path) -> None:
    create(dev, 1)
    backend = phones(dev, device_list=CDI_ONLY)
    (dev / "aosp_binder1").unlink()
    backend.scan()
    backend.update_host()
    assert os.listdir(dev.parent / "cdi") == []
    create(dev, 1)
    backend.scan()
    backend.update_host()
    assert os.listdir(dev.parent / "cdi") == ["aosp.io_phone.json"]
    backend.backend.close()
    assert os.listdir(dev.parent / "cdi") == ["aosp.io_phone.json"]


def test_device_is_unhealthy_if_only_a_cdi_spec_that_cannot_be_written_brings_it(dev: Path) -> None:
    """Its container could not start. Devices in the spec that was written before stay healthy."""
    create(dev, 1)
    backend = phones(dev, device_list=CDI_ONLY)
    (dev.parent / "cdi").rename(dev.parent / "away")
    (dev.parent / "cdi").touch()
    create(dev, 2)
    assert backend.scan() == dict.fromkeys(names([1, 2]), ""), "publishing comes first"
    with pytest.raises(BackendError, match="cannot update the CDI spec"):
        backend.update_host()
    assert backend.scan() == {"aosp_binder1": "", "aosp_binder2": "not-in-cdi-spec"}
    with pytest.raises(UnhealthyDeviceError, match="'aosp_binder2' is unhealthy: not-in-cdi-spec"):
        backend.allocate(names([2]))
    (dev.parent / "cdi").unlink()
    (dev.parent / "away").rename(dev.parent / "cdi")
    backend.update_host()
    assert list(cdi_devices(dev)) == names([1, 2])
    assert backend.due() == 0.0
    assert backend.scan() == dict.fromkeys(names([1, 2]), "")
    assert backend.due() is None
