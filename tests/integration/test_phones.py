"""Nodes as phones: sets, container paths, replicas, NUMA nodes and CDI, over real directories of plain files."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.backend import BinderBackend, Settings
from aosp_plugin.binder.devices import numa
from aosp_plugin.binder.devices.edits import Policy
from aosp_plugin.binder.devices.sets import Named, Numbered, Single
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.errors import CdiError, InvalidRequestError, UnhealthyDeviceError, UnknownDeviceError
from aosp_plugin.framework.device_list import DeviceList

if TYPE_CHECKING:
    from pathlib import Path

    from aosp_plugin.framework.edits import ContainerEdits


PATHS = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
RESOURCE = "aosp.io/phone"
KBOX = Numbered("aosp_binder", 3, 120, 1)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    made = tmp_path / "dev"
    made.mkdir()
    return made


def backend(dev: Path, **options: Any) -> BinderBackend:
    """Return a backend that takes plain files for nodes and gives nothing but them."""
    settings: dict[str, Any] = {
        "resource_name": RESOURCE,
        "directory": str(dev),
        "prefix": "aosp_binder",
        "verify": Verify.FILE,
        "policy": Policy(shared_mounts=(), shared_devices=(), container_paths=PATHS),
        "cdi_directory": str(dev.parent / "cdi"),
    }
    made = BinderBackend(Host(), Settings(**settings | options))
    made.scan()
    return made


def make(dev: Path, *numbers: int) -> None:
    for number in numbers:
        (dev / f"aosp_binder{number}").touch()


def make_phones(dev: Path, *phones: str) -> None:
    for phone in phones:
        (dev / phone).mkdir()
        for name in ("binder", "hwbinder", "vndbinder"):
            (dev / phone / name).touch()


def reasons(made: BinderBackend) -> dict[str, str]:
    return {device.id: device.reason for device in made.devices()}


def names(*numbers: int) -> list[str]:
    return [f"aosp_binder{number}" for number in numbers]


def at(response: ContainerEdits, dev: Path) -> dict[str, str]:
    """Return where each mount of a container leads, below the device directory."""
    return {mount.container_path: os.path.relpath(mount.host_path, dev) for mount in response.mounts}


@pytest.mark.parametrize("seed", range(5))
def test_container_paths_follow_the_numbers_whatever_the_order_of_the_request(dev: Path, seed: int) -> None:
    """The kubelet sends IDs in random order."""
    make(dev, 9, 10, 11, 100)
    ids = names(100, 9, 11, 10)
    random.Random(seed).shuffle(ids)  # noqa: S311 - an order, no secret
    response = backend(dev).allocate(ids)
    assert at(response, dev) == dict(zip(PATHS, names(9, 10, 11), strict=True))
    assert [device.container_path for device in response.devices] == [f"/dev/{name}" for name in names(9, 10, 11, 100)]
    assert response.environment["BINDER_VISIBLE_DEVICES"] == ",".join(names(9, 10, 11, 100))


def test_kbox_s_layout_makes_120_phones_and_one_missing_node_costs_one_of_them(dev: Path) -> None:
    """Paired by number: what is missing shifts no other."""
    make(dev, *range(400))
    made = backend(dev, layout=KBOX)
    before = {device.id: made.nodes()[device.id] for device in made.devices()}
    assert len(before) == 120
    assert set(reasons(made).values()) == {""}
    (dev / "aosp_binder121").unlink()
    made.scan()
    assert {one: why for one, why in reasons(made).items() if why} == {"aosp_binder1": "incomplete"}
    (ill,) = [device for device in made.devices() if not device.healthy]
    assert ill.why == "incomplete: aosp_binder121 is missing"
    after = {device.id: made.nodes()[device.id] for device in made.devices() if device.healthy}
    assert after == {one: nodes for one, nodes in before.items() if one != "aosp_binder1"}
    with pytest.raises(UnhealthyDeviceError, match="unhealthy: incomplete: aosp_binder121 is missing"):
        made.allocate(["aosp_binder1"])


def test_a_set_is_given_whole_at_the_container_paths(dev: Path) -> None:
    """One device is one phone's nodes: N, N + 120, N + 240."""
    make(dev, *range(1, 361))
    response = backend(dev, layout=KBOX).allocate(["aosp_binder7"])
    assert at(response, dev) == dict(zip(PATHS, names(7, 127, 247), strict=True))
    assert [device.container_path for device in response.devices] == [f"/dev/{name}" for name in names(7, 127, 247)]


def test_a_node_of_a_set_that_vanished_since_the_last_look_refuses_the_whole_set(dev: Path) -> None:
    """Nothing is half-allocated."""
    make(dev, *range(6))
    made = backend(dev, layout=Numbered("aosp_binder", 3))
    (dev / "aosp_binder4").unlink()
    with pytest.raises(UnhealthyDeviceError, match="incomplete: aosp_binder4 is missing"):
        made.allocate(["aosp_binder3"])
    assert made.allocate(["aosp_binder0"]).environment["BINDER_VISIBLE_DEVICES"] == ",".join(names(0, 1, 2))


def test_a_phone_may_be_a_directory_of_named_nodes(dev: Path) -> None:
    """Each of them is at /dev under its own name as well, and a phone that comes later is seen."""
    make_phones(dev, "phone1")
    made = backend(dev, layout=Named(["binder", "hwbinder", "vndbinder"]))
    make_phones(dev, "phone10", "phone2")
    assert os.path.join(dev, "phone1") in made.directories()
    made.scan()
    assert list(reasons(made)) == ["phone1", "phone2", "phone10"]
    response = made.allocate(["phone2"])
    assert at(response, dev) == {
        "/dev/binder": "phone2/binder",
        "/dev/hwbinder": "phone2/hwbinder",
        "/dev/vndbinder": "phone2/vndbinder",
    }
    assert response.environment["BINDER_VISIBLE_DEVICES"] == "phone2/binder,phone2/hwbinder,phone2/vndbinder"
    (dev / "phone2/hwbinder").unlink()
    made.scan()
    assert reasons(made) == {"phone1": "", "phone2": "incomplete", "phone10": ""}


def test_replicas_are_the_same_nodes_under_ids_of_their_own(dev: Path) -> None:
    """Each is a device to the kubelet; a container with two of them has the node once."""
    make(dev, 1, 2)
    made = backend(dev, replicas=3)
    assert list(reasons(made)) == [f"aosp_binder{node}::{one}" for node in (1, 2) for one in range(3)]
    assert made.allocate(["aosp_binder2::0", "aosp_binder2::2"]) == made.allocate(["aosp_binder2::1"])
    (dev / "aosp_binder2").unlink()
    made.scan()
    assert [one for one, why in reasons(made).items() if why] == [f"aosp_binder2::{one}" for one in range(3)]
    for unknown in ("aosp_binder1", "aosp_binder1::3", "aosp_binder1::x"):
        with pytest.raises(UnknownDeviceError, match=f"device '{unknown}' is unknown"):
            made.allocate([unknown])


def test_a_device_whose_replicas_would_have_too_long_ids_is_left_out(
    dev: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A device ID has 63 characters at most; the log tells of it once."""
    long = f"aosp_binder{'0' * 48}"
    (dev / f"{long}1").touch()
    (dev / f"{long}12").touch()
    made = backend(dev, replicas=2)
    made.scan()
    assert list(reasons(made)) == [f"{long}1::0", f"{long}1::1"]
    (warning,) = [record for record in caplog.records if "left out" in record.getMessage()]
    assert vars(warning)["device"] == f"{long}12"


def test_replicas_are_spread_over_the_devices(dev: Path) -> None:
    """Two containers share a node only where there are more containers than nodes."""
    make(dev, 1, 2)
    made = backend(dev, replicas=2)
    free = ["aosp_binder1::1", "aosp_binder2::0", "aosp_binder2::1"]
    assert made.prefer(free, [], 1) == ["aosp_binder2::0"]
    assert sorted(one.partition("::")[0] for one in made.prefer(free, [], 2)) == names(1, 2)


def test_numa_nodes_are_told_and_a_container_is_kept_on_one(dev: Path) -> None:
    """The ranges are of the nodes' numbers."""
    make(dev, *range(6))
    made = backend(dev, numa=numa.parse({"0-2": 0, "3-4": 1}))
    assert [device.numa_nodes for device in made.devices()] == [(0,), (0,), (0,), (1,), (1,), ()]
    assert made.prefer(names(2, 3, 4, 5), [], 2) == names(3, 4)
    assert made.prefer(names(1, 2, 3, 4), ["aosp_binder2"], 2) == names(2, 1)


def spec(dev: Path) -> Any:
    return json.loads((dev.parent / "cdi/aosp.io_phone.json").read_bytes())


CDI_ONLY = frozenset({DeviceList.ENVVAR, DeviceList.CDI_CRI, DeviceList.CDI_ANNOTATIONS})


def test_cdi_names_stand_for_what_the_answer_would_have_held(dev: Path) -> None:
    """The edits of a set in its spec are those of Allocate; the answer has the names and the variables."""
    make(dev, *range(6))
    phones = {"layout": Numbered("aosp_binder", 3)}
    plain = backend(dev, **phones).allocate(["aosp_binder3"])
    made = backend(dev, **phones, ways=CDI_ONLY)
    response = made.allocate(["aosp_binder3"])
    assert response.cdi_devices == ["aosp.io/phone=aosp_binder3"]
    assert list(response.annotations.values()) == ["aosp.io/phone=aosp_binder3"]
    assert (list(response.devices), list(response.mounts)) == ([], [])
    assert response.environment == plain.environment
    (edits,) = [one["containerEdits"] for one in spec(dev)["devices"] if one["name"] == "aosp_binder3"]
    assert [(one["hostPath"], one["path"], one["permissions"]) for one in edits["deviceNodes"]] == [
        (one.host_path, one.container_path, one.permissions) for one in plain.devices
    ]
    assert [(one["hostPath"], one["containerPath"]) for one in edits["mounts"]] == [
        (one.host_path, one.container_path) for one in plain.mounts
    ]


def test_container_paths_of_single_nodes_come_with_the_answer(dev: Path) -> None:
    """Which of a container's nodes one will be can't stand in its spec."""
    make(dev, 1, 2)
    response = backend(dev, ways=CDI_ONLY).allocate(names(2, 1))
    assert at(response, dev) == {"/dev/binder": "aosp_binder1", "/dev/hwbinder": "aosp_binder2"}
    assert all("mounts" not in one["containerEdits"] for one in spec(dev)["devices"])


def test_two_sets_in_one_container_are_refused_by_cdi(dev: Path) -> None:
    """Each would be at /dev/binder, and a runtime lets the last one win."""
    make(dev, *range(6))
    made = backend(dev, layout=Numbered("aosp_binder", 3), ways=CDI_ONLY)
    with pytest.raises(InvalidRequestError, match="aosp_binder0, aosp_binder3 can't be in one container by CDI"):
        made.allocate(names(0, 3))


def test_a_spec_has_the_healthy_devices_and_the_real_paths_of_their_nodes(dev: Path) -> None:
    """A CDI library follows no link; a runtime that knows a device by name would be given an ill one."""
    (dev.parent / "binderfs").mkdir()
    for name in names(1, 2):
        (dev.parent / "binderfs" / name).touch()
        (dev / name).symlink_to(dev.parent / "binderfs" / name)
    made = backend(dev, replicas=2, ways=CDI_ONLY)
    assert [one["name"] for one in spec(dev)["devices"]] == names(1, 2)
    (device,) = spec(dev)["devices"][0]["containerEdits"]["deviceNodes"]
    assert device["hostPath"] == str(dev.parent / "binderfs/aosp_binder1")
    (dev / "aosp_binder2").unlink()
    made.scan()
    assert [one["name"] for one in spec(dev)["devices"]] == names(1)


def test_a_spec_goes_with_its_devices_and_with_the_plugin(dev: Path) -> None:
    """Nobody is to be given what the plugin does not look after."""
    make(dev, 1)
    made = backend(dev, ways=CDI_ONLY)
    (dev / "aosp_binder1").unlink()
    made.scan()
    assert os.listdir(dev.parent / "cdi") == []
    make(dev, 1)
    made.scan()
    assert os.listdir(dev.parent / "cdi") == ["aosp.io_phone.json"]
    made.close()
    assert os.listdir(dev.parent / "cdi") == []


def test_without_cdi_no_spec_is_written(dev: Path) -> None:
    """The directory is not even made."""
    make(dev, 1)
    backend(dev).close()
    assert not (dev.parent / "cdi").exists()


def test_a_spec_that_can_not_be_written_is_an_error_of_the_look(dev: Path) -> None:
    """Pods would be given names that no runtime knows."""
    make(dev, 1)
    (dev.parent / "cdi").touch()
    with pytest.raises(CdiError, match="cannot update the CDI spec"):
        backend(dev, ways=CDI_ONLY)


def test_only_the_listed_ways_are_used(dev: Path) -> None:
    """Without envvar there is no variable; with volume mounts and CDI the answer has both."""
    make(dev, 1)
    silent = backend(dev, ways=frozenset({DeviceList.VOLUME_MOUNTS})).allocate(names(1))
    assert "BINDER_VISIBLE_DEVICES" not in silent.environment
    assert len(silent.devices) == 1
    both = backend(dev, ways=frozenset({DeviceList.VOLUME_MOUNTS, DeviceList.CDI_CRI})).allocate(names(1))
    assert (len(both.devices), len(both.cdi_devices), len(both.annotations)) == (1, 1, 0)


def test_a_plain_file_can_not_be_renewed_and_says_so(dev: Path) -> None:
    """Only nodes of a binderfs can be made anew: better no phone than one with the last tenant in it."""
    make(dev, 1)
    made = backend(dev, renew=True, layout=Single())
    assert made.pre_start_required
    assert reasons(made) == {"aosp_binder1": "not-recreated"}
    with pytest.raises(UnhealthyDeviceError, match=r"aosp_binder1.*only nodes of a binderfs can be"):
        made.pre_start(names(1))
