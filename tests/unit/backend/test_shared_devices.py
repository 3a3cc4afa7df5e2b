"""Other devices of a phone, shared, spread and in slices, as its container gets them.

Devices are links to those of the kernel, so that no rights are required, except where a test makes device files.
"""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.shared_paths import SharedPaths
from aosp_plugin.binder.driver import host
from aosp_plugin.config.keys import NumberedSets, Resource, SharedDevice, SliceDevices, SpreadDevice
from aosp_plugin.config.values import Api
from aosp_plugin.framework.backend import ClaimParameters, DeviceNode, Mount
from aosp_plugin.framework.errors import InvalidRequestError, UnhealthyDeviceError
from tests.backends import Served, binder_backend
from tests.support import DeviceDirectory, names, without_descriptors

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


def phones(devices: DeviceDirectory, count: int, **keys: Any) -> Served:
    """Return a backend with this many devices, which has not scanned yet."""
    devices.add(*range(count))
    keys = {"shared_mounts": (), **keys}
    return binder_backend(devices.directory, cdi_dir=devices.directory.parent / "cdi", **keys)


def claimed(devices: DeviceDirectory, count: int, **keys: Any) -> Served:
    """Return a backend with this many devices for claims, which has scanned."""
    backend = phones(devices, count, api=Api.DRA, sets=NumberedSets(size=1), **keys)
    backend.scan()
    return backend


def others(backend: Served, *ids: str) -> list[str]:
    """Return the paths of the devices that a container gets besides binder devices."""
    nodes = backend.allocate(ids).devices
    assert all(node.host_path == node.container_path for node in nodes if "binder" not in node.host_path)
    return [node.host_path for node in nodes if "binder" not in node.host_path]


# -- shared devices


def test_container_gets_all_devices_that_match_a_pattern(
    device_directory: DeviceDirectory, dri: Dri, caplog: pytest.LogCaptureFixture
) -> None:
    """In natural order, each once, at the host's path; one that has another path in the container, there as well.

    None gets one whose name is no text, as a phone with CAP_MKNOD can make it in a devtmpfs: with its path, no answer
    to the kubelet could be encoded.
    """
    dri.add(9, 10)
    strange = os.path.join(os.fsencode(dri.directory), b"renderD\xff")
    os.symlink(os.path.realpath(dri.path(9)), strange)
    shared = (SharedDevice(path=dri.path(10)), dri.pattern, f"{dri.path(9)}:/dev/gpu")
    backend = phones(device_directory, 1, shared_devices=shared)
    backend.scan()
    paths = [(path, path) for path in (dri.path(10), dri.path(9))] + [(dri.path(9), "/dev/gpu")]
    nodes = [DeviceNode(host_path, path) for host_path, path in paths]
    assert backend.allocate(["aosp_binder0"]).devices[1:] == nodes
    (warning,) = [vars(record) for record in caplog.records if "not passed to containers" in record.msg]
    assert warning["path"] == ascii(os.fsdecode(strange))


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
        assert backend.scan() == dict.fromkeys(names(range(3)), "requirement-missing")
    assert {device.detail for device in backend.found.devices} == {f"requirement-missing: {required}"}
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.directory}/renderD"):
        backend.allocate(["aosp_binder1"])
    dri.add(1)
    assert backend.scan() == dict.fromkeys(names(range(3)), "")
    assert others(backend, "aosp_binder1") == [dri.path(1)]
    dri.remove(1)
    assert backend.scan() == dict.fromkeys(names(range(3)), "requirement-missing")
    logged = [(record.levelname, vars(record)["path"]) for record in caplog.records if "not found" in record.msg]
    assert logged == [("INFO", optional), ("WARNING", required), ("WARNING", required)]


# -- spread devices


def test_lost_spread_device_concerns_its_devices_only(device_directory: DeviceDirectory, dri: Dri) -> None:
    """No other device moves, until SIGHUP or a restart spreads all over those that exist.

    A container with several devices gets the spread device of each.
    """
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,))
    assert set(backend.scan().values()) == {"requirement-missing"}
    assert backend.found.devices[0].detail == f"requirement-missing: {dri.pattern}"
    assert backend.found.by_spread_device == {}
    dri.add(128, 129, 130)
    assert set(backend.scan().values()) == {""}
    assert others(backend, *names([1, 2, 4])) == [dri.path(129), dri.path(130)]
    assert backend.found.by_spread_device == {dri.path(128 + n): names([n, n + 3]) for n in range(3)}
    dri.remove(129)
    assert backend.scan() == {
        name: "requirement-missing" if n % 3 == 1 else "" for n, name in enumerate(names(range(6)))
    }
    assert backend.found.devices[1].detail == f"requirement-missing: {dri.path(129)}"
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.path(129)}"):
        backend.allocate(["aosp_binder4"])
    assert [others(backend, name) for name in names([0, 2, 3, 5])] == [[dri.path(128 + n % 3)] for n in (0, 2, 3, 5)]
    dri.add(129)
    assert set(backend.scan().values()) == {""}
    dri.remove(129)
    backend.reset()
    assert set(backend.scan().values()) == {""}
    assert [others(backend, name) for name in names(range(4))] == [[dri.path(n)] for n in (128, 130, 128, 130)]
    dri.add(129)
    assert set(backend.scan().values()) == {""}
    assert others(backend, "aosp_binder1") == [dri.path(129)], "another one is known now"


def test_devices_beyond_the_limit_of_their_spread_device_are_unhealthy(
    device_directory: DeviceDirectory, dri: Dri
) -> None:
    """Those with the highest numbers. One that is refused takes no room on another spread device."""
    dri.add(128, 129)
    limited = SpreadDevice(path=dri.pattern, per_device=2)
    other = SpreadDevice(path="/dev/zero", per_device=5)
    backend = phones(device_directory, 8, spread_devices=(limited, other))
    full = [f"beyond-per-device: no room on {dri.path(n)} (spread_devices, per_device)" for n in (128, 129)]
    backend.scan()
    assert [device.detail for device in backend.found.devices] == ["", "", "", "", *full, *full]
    with pytest.raises(UnhealthyDeviceError, match="no room on"):
        backend.allocate(["aosp_binder6"])
    device_directory.remove(0, 1)
    backend.reset()
    backend.scan()
    assert [device.detail for device in backend.found.devices] == ["", "", "", "", *full]


class Gpus:
    """A node with three GPUs and the card of a BMC, with their hardware in a directory like sysfs."""

    BMC, FIRST, SECOND, THIRD = ("0000:03:00.0", "0000:04:00.0", "0000:41:00.0", "0000:42:00.0")
    LAYOUT = (
        *(("card0", "null", BMC), ("card1", "zero", FIRST), ("card2", "full", SECOND), ("card3", "random", THIRD)),
        *(("renderD128", "urandom", SECOND), ("renderD129", "tty", THIRD), ("renderD130", "ptmx", FIRST)),
    )
    """Name, the device of the kernel that stands in for it, and the hardware."""

    def __init__(self, directory: Path, sys_dev: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for name, device, hardware in self.LAYOUT:
            number = os.stat(f"/dev/{device}").st_rdev
            link = sys_dev / "char" / f"{os.major(number)}:{os.minor(number)}" / "device"
            link.parent.mkdir(parents=True)
            link.symlink_to(f"../../../devices/pci0000:00/{hardware}")
            self.add(name)

    def add(self, *names: str) -> None:
        """Create devices."""
        devices = {name: device for name, device, _ in self.LAYOUT}
        for name in names:
            (self.directory / name).symlink_to(f"/dev/{devices[name]}")

    def remove(self, *names: str) -> None:
        """Remove devices."""
        for name in names:
            (self.directory / name).unlink()

    def items(self, **keys: Any) -> tuple[SpreadDevice, SpreadDevice]:
        """Return the items of ``spread_devices``: cards and render nodes."""
        return SpreadDevice(path=f"{self.directory}/card*"), SpreadDevice(path=f"{self.directory}/renderD*", **keys)

    def of(self, backend: Served, *numbers: int) -> list[list[str]]:
        """Return the names of the GPU's devices that the containers of these devices get."""
        return [[os.path.basename(path) for path in others(backend, name)] for name in names(numbers)]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.setattr(host, "SYS_DEV", str(tmp_path / "sys/dev"))
    return Gpus(tmp_path / "dri", tmp_path / "sys/dev")


PAIRS = [["card1", "renderD130"], ["card2", "renderD128"], ["card3", "renderD129"]]


def test_container_gets_card_and_render_node_of_one_gpu(
    device_directory: DeviceDirectory, gpus: Gpus, caplog: pytest.LogCaptureFixture
) -> None:
    """By their hardware in sysfs. The card of a BMC has no render node, and no container gets it.

    A GPU that is lost, wholly or in part, concerns its devices only. After a restart or SIGHUP the others are spread.
    """
    caplog.set_level(logging.INFO)
    backend = phones(device_directory, 6, spread_devices=gpus.items())
    assert set(backend.scan().values()) == {""}
    assert gpus.of(backend, *range(6)) == PAIRS * 2
    assert backend.found.by_spread_device[f"{gpus.directory}/card2"] == names([1, 4])
    (record,) = [record for record in caplog.records if record.message == "spread devices changed"]
    assert vars(record)["unused"] == f"{gpus.directory}/card0"
    lost = dict.fromkeys(names([1, 4]), "requirement-missing")
    for part in ("renderD128", "card2"):
        gpus.remove(part)
        assert backend.scan() == {**dict.fromkeys(names(range(6)), ""), **lost}
    assert backend.found.devices[1].detail.endswith(f"{gpus.directory}/card2, {gpus.directory}/renderD128")
    assert gpus.of(backend, 0, 2, 3, 5) == PAIRS[::2] * 2
    backend.reset()
    assert set(backend.scan().values()) == {""}
    assert gpus.of(backend, 0, 1, 2) == [PAIRS[0], PAIRS[2], PAIRS[0]]


def test_gpu_has_a_stable_path_and_a_variable(device_directory: DeviceDirectory, gpus: Gpus) -> None:
    """So that a parameter of the image is one constant for all phones, or the container reads the variable."""
    items = gpus.items(container_path="/dev/dri/renderD128", env="GPU_NODE")
    backend = phones(device_directory, 3, spread_devices=(items[0], items[1]), path_env="")
    backend.scan()
    for number, pair in enumerate(PAIRS):
        edits = backend.allocate(names([number]))
        paths = [(node.host_path, node.container_path) for node in edits.devices[1:]]
        card, render_node = (f"{gpus.directory}/{name}" for name in pair)
        assert paths == [(card, card), (render_node, "/dev/dri/renderD128")]
        assert edits.environment["GPU_NODE"] == "/dev/dri/renderD128"
    with pytest.raises(InvalidRequestError, match="would both be /dev/dri/renderD128"):
        backend.allocate(names([0, 1]))


def test_variable_names_each_spread_device_of_a_container_once(device_directory: DeviceDirectory, gpus: Gpus) -> None:
    backend = phones(device_directory, 6, spread_devices=gpus.items(env="GPU")[1:])
    backend.scan()
    paths = f"{gpus.directory}/renderD128,{gpus.directory}/renderD129"
    assert backend.allocate(names([0, 1, 3])).environment["GPU"] == paths


def test_claim_has_the_mount_and_the_gpu_of_its_device(
    device_directory: DeviceDirectory, gpus: Gpus, streamer: Path
) -> None:
    """The user of a claim cannot set the variable otherwise."""
    backend = claimed(
        device_directory,
        3,
        spread_devices=gpus.items(container_path="/dev/dri/renderD128", env="GPU_NODE"),
        shared_mounts=(f"{streamer}/{{number}}:/run/streamer",),
    )
    (edits,) = backend.prepare(["aosp_binder1"])
    assert edits.devices[-1][:2] == ("/dev/urandom", "/dev/dri/renderD128")
    assert edits.environment["GPU_NODE"] == "/dev/dri/renderD128"
    assert edits.mounts == [Mount(f"{streamer}/1", "/run/streamer", read_only=True)]
    content = {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", "environment": {"GPU_NODE": "x"}}
    with pytest.raises(InvalidRequestError, match="the variable GPU_NODE is not allowed"):
        backend.prepare(["aosp_binder0"], [ClaimParameters("claim", content)])


# -- mounts of single devices


@pytest.fixture
def streamer(tmp_path: Path) -> Path:
    """Return the directory of a streamer, with a directory for each of two phones."""
    for number in range(2):
        (tmp_path / f"streamer/{number}").mkdir(parents=True)
        (tmp_path / f"streamer/{number}/input").touch()
    return tmp_path / "streamer"


def own_mounts(backend: Served, *ids: str) -> dict[str, str]:
    """Return the mounts of a container by path."""
    mounts = backend.allocate(ids).mounts
    assert all(mount.read_only for mount in mounts)
    return {mount.container_path: mount.host_path for mount in mounts}


def test_device_has_mounts_by_its_number_and_its_id(
    device_directory: DeviceDirectory, streamer: Path, tmp_path: Path
) -> None:
    """Those that exist: another one is part of the next container."""
    (tmp_path / "by-id/aosp_binder3").mkdir(parents=True)
    mounts = (f"{streamer}/{{number}}/input:/dev/input-socket", f"{tmp_path}//by-id/{{id}}")
    backend = phones(device_directory, 6, sets=NumberedSets(size=3), shared_mounts=mounts)
    backend.scan()
    assert own_mounts(backend, "aosp_binder0") == {"/dev/input-socket": f"{streamer}/0/input"}
    by_id = {f"{tmp_path}/by-id/aosp_binder3": f"{tmp_path}/by-id/aosp_binder3"}
    assert own_mounts(backend, "aosp_binder3") == {"/dev/input-socket": f"{streamer}/1/input", **by_id}
    assert {str(streamer), f"{streamer}/0", str(tmp_path / "by-id")} <= backend.found.directories
    (streamer / "1/input").unlink()
    backend.scan()
    assert own_mounts(backend, "aosp_binder3") == by_id
    (streamer / "1/input").touch()
    backend.scan()
    with pytest.raises(InvalidRequestError, match="would both be /dev/input-socket"):
        backend.allocate(["aosp_binder0", "aosp_binder3"])


def test_mount_of_a_device_is_not_reached_by_a_link(
    device_directory: DeviceDirectory, streamer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may write in the streamer's directory would choose what of the host a container gets."""
    (tmp_path / "link").symlink_to(streamer)
    (streamer / "1/input").unlink()
    (streamer / "1/input").symlink_to("/etc/shadow")
    (streamer / "2").symlink_to("/")
    mounts = (f"{tmp_path}/link/{{number}}/input:/input", f"{streamer}/{{number}}:/all")
    backend = phones(device_directory, 3, sets=NumberedSets(size=1), shared_mounts=mounts)
    for _ in range(2):
        backend.scan()
    assert own_mounts(backend, "aosp_binder0") == {"/input": f"{tmp_path}/link/0/input", "/all": f"{streamer}/0"}
    assert own_mounts(backend, "aosp_binder1") == {"/all": f"{streamer}/1"}
    assert own_mounts(backend, "aosp_binder2") == {}
    logged = [vars(record)["path"] for record in caplog.records if "is a link" in record.message]
    assert logged == [f"{tmp_path}/link/1/input", f"{streamer}/2"]


# -- slices


def test_container_gets_a_slice_of_its_own(device_directory: DeviceDirectory, dri: Dri) -> None:
    """A device whose slice is not whole is unhealthy, and no other slice changes."""
    dri.add(0, 1, 2, 4, 5)
    slices = (SliceDevices(path=dri.pattern, count=2),)
    backend = phones(device_directory, 3, sets=NumberedSets(size=1), slice_devices=slices)
    assert backend.scan() == {"aosp_binder0": "", "aosp_binder1": "requirement-missing", "aosp_binder2": ""}
    assert backend.found.devices[1].detail == f"requirement-missing: {dri.path(3)}"
    assert str(dri.directory) in backend.found.directories, "a change causes a scan"
    for number in (0, 2):
        paths = [dri.path(2 * number), dri.path(2 * number + 1)]
        assert others(backend, f"aosp_binder{number}") == paths
    dri.add(3)
    assert set(backend.scan().values()) == {""}
    dri.remove(0)
    assert backend.scan() == {"aosp_binder0": "requirement-missing", "aosp_binder1": "", "aosp_binder2": ""}
    assert others(backend, "aosp_binder1") == [dri.path(2), dri.path(3)]


def test_claim_gets_no_device_of_the_slice_of_another_one(device_directory: DeviceDirectory, dri: Dri) -> None:
    """Neither by its path, nor by another one that leads to the same device. One without its whole slice has none."""
    dri.add(0)
    dri.add(1, device="/dev/zero")
    slices = (SliceDevices(path=dri.pattern, count=1),)
    backend = claimed(device_directory, 3, slice_devices=slices)
    (edits,) = backend.prepare(["aosp_binder1"])
    assert [node.container_path for node in edits.devices] == ["/dev/aosp_binder1", dri.path(1)]
    with pytest.raises(UnhealthyDeviceError, match=f"missing: {dri.path(2)}"):
        backend.prepare(["aosp_binder2"])
    alias = dri.directory / "alias"
    alias.symlink_to("/dev/zero")
    for path in (dri.path(1), str(alias)):
        content = {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", "devices": [path]}
        given = [ClaimParameters("class", content)]
        with pytest.raises(InvalidRequestError, match=f"{path} is not allowed: it is {dri.path(1)} of slice_devices"):
            backend.prepare(["aosp_binder0"], given)
        backend.prepare(["aosp_binder1"], given)


def test_a_scan_without_descriptors_fails_instead_of_finding_less(dri: Dri) -> None:
    """Containers would start without the devices."""
    dri.add(128)
    shared = SharedDevice(path=dri.pattern, required=False)
    paths = SharedPaths(host.Host(), Resource(shared_devices=(shared,)))
    assert paths.scan().devices == ((dri.path(128), dri.path(128)),)
    with without_descriptors(os.getpid()), pytest.raises(OSError, match="Too many open files"):
        paths.scan()
