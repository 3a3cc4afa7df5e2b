"""The binder backend over real directories: plain files, device nodes made with mknod, and links between them."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.devices.store import SHORTEST_PAUSE
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.host_errors import BinderfsError, NotPermittedError
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.devices import DeviceNode, Mount
from aosp_plugin.framework.errors import BackendError, ConfigError, UnhealthyDeviceError, UnknownDeviceError
from kubelet_standin import Kubelet
from tests.backends import binder_backend, scan
from tests.support import IN_LIFE, PATIENCE, RESOURCE, Clock, listed, run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates device nodes, which requires root")

TTL = 300.0
NULL = os.makedev(1, 3)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Return the device directory."""
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


@pytest.fixture
def other_file_system() -> Iterator[Path]:
    """Return a directory on another file system than ``dev``."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == Path("/tmp").stat().st_dev:
        pytest.skip("this machine has no second writable file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        yield Path(directory)


def create(directory: Path, *numbers: int) -> None:
    """Create plain files."""
    for number in numbers:
        (directory / f"aosp_binder{number}").touch()


def create_nodes(directory: Path, *names: str) -> None:
    """Create copies of /dev/null."""
    for name in names:
        os.mknod(directory / name, 0o20600, NULL)


def link(path: Path, target: Path) -> None:
    """Create a link, or change its target. The target is created."""
    target.touch()
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def fake_binderfs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Make the file system of this directory count as a binderfs."""
    (directory / "binder-control").touch()
    driver = Driver(file_systems=frozenset({directory.stat().st_dev}))
    monkeypatch.setattr(Host, "driver", lambda _self: driver)


def refuse(_self: Host, _directory: str) -> list[str]:
    raise PermissionError(13, "Permission denied")


def test_vanished_device_is_missing_until_its_ttl_expires(dev: Path, clock: Clock) -> None:
    backend = binder_backend(dev, clock=clock)
    assert list(backend.devices()) == []
    assert backend.directories() == {str(dev)}
    create(dev, 1, 2)
    with pytest.raises(UnknownDeviceError, match="unknown device 'aosp_binder1'"):
        backend.allocate(["aosp_binder1"])
    scan(backend)
    (dev / "aosp_binder1").unlink()
    assert scan(backend) == {"aosp_binder1": "missing", "aosp_binder2": ""}
    clock.now += TTL
    assert scan(backend) == {"aosp_binder2": ""}


def test_device_on_another_file_system_is_replaced_until_the_ttl_expires(
    dev: Path, tmp_path: Path, other_file_system: Path, clock: Clock
) -> None:
    """For example, the binderfs was mounted again while containers have devices of the old one."""
    link(dev / "aosp_binder1", tmp_path / "a")
    backend = binder_backend(dev, clock=clock)
    assert scan(backend) == {"aosp_binder1": ""}
    link(dev / "aosp_binder1", other_file_system / "a")
    assert scan(backend) == {"aosp_binder1": "replaced"}
    with pytest.raises(UnhealthyDeviceError, match="device 'aosp_binder1' is unhealthy: replaced"):
        backend.allocate(["aosp_binder1"])
    assert backend.directories() == {str(dev), str(other_file_system)}
    assert backend.seconds_until_scan() == TTL
    clock.now += TTL
    backend.scan()
    assert [device.reason for device in backend.devices()] == [""]


@pytest.mark.usefixtures("no_mount_events")
async def test_missing_device_is_dropped_at_its_time(dev: Path, kubelet_dir: str) -> None:
    """No event causes the scan that drops it, and full scans are minutes apart."""
    create(dev, 1, 2)
    backend = binder_backend(dev, missing_device_ttl=1.0)
    async with Kubelet(kubelet_dir) as kubelet, run(DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=IN_LIFE)):
        await listed(kubelet, 2)
        (dev / "aosp_binder1").unlink()
        await listed(kubelet, 1)
        await kubelet.wait_for(lambda k: list(k.resource(RESOURCE).devices) == ["aosp_binder2"], PATIENCE)


def test_reset_is_applied_by_the_first_scan_that_succeeds(
    dev: Path, tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts replaced devices and drops missing ones. A scan that fails changes nothing."""
    link(dev / "aosp_binder1", tmp_path / "a")
    create(dev, 2)
    backend = binder_backend(dev)
    scan(backend)
    link(dev / "aosp_binder1", other_file_system / "a")
    (dev / "aosp_binder2").unlink()
    before = {"aosp_binder1": "replaced", "aosp_binder2": "missing"}
    assert scan(backend) == before
    backend.reset()
    with monkeypatch.context() as patch:
        patch.setattr(Host, "listdir", refuse)
        with pytest.raises(PermissionError):
            backend.scan()
    assert {device.id: device.reason for device in backend.devices()} == before
    assert scan(backend) == {"aosp_binder1": ""}
    link(dev / "aosp_binder1", tmp_path / "a")
    assert scan(backend) == {"aosp_binder1": "replaced"}


def test_reset_during_a_scan_is_for_the_next_one(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan may have read the devices before."""
    create(dev, 1)
    backend = binder_backend(dev)
    scan(backend)
    (dev / "aosp_binder1").unlink()
    read = Host.driver

    def reset_and_read(host: Host) -> Driver:
        backend.reset()
        return read(host)

    with monkeypatch.context() as patch:
        patch.setattr(Host, "driver", reset_and_read)
        assert scan(backend) == {"aosp_binder1": "missing"}
    assert scan(backend) == {}


def test_dangling_link_causes_no_scan_after_the_other(dev: Path, clock: Clock) -> None:
    """It is found again each time that it expires, here immediately."""
    (dev / "aosp_binder1").symlink_to(dev / "none")
    backend = binder_backend(dev, clock=clock, missing_device_ttl=0.0)
    for _ in range(2):
        assert scan(backend) == {"aosp_binder1": "missing"}
        assert backend.seconds_until_scan() == SHORTEST_PAUSE
        clock.now += SHORTEST_PAUSE


def test_device_directory_that_never_existed_is_an_error(tmp_path: Path) -> None:
    """Its path is probably wrong."""
    backend = binder_backend(tmp_path / "none")
    (tmp_path / "none").touch()
    with pytest.raises(BackendError, match=f"cannot read the device directory {tmp_path}/none: .*Not a directory"):
        backend.scan()
    (tmp_path / "none").unlink()
    for _ in range(2):
        with pytest.raises(BackendError, match=f"cannot read the device directory {tmp_path}/none: .*No such file"):
            backend.scan()
    (tmp_path / "none").mkdir()
    create(tmp_path / "none", 1)
    assert scan(backend) == {"aosp_binder1": ""}


def test_devices_of_a_vanished_device_directory_are_missing(dev: Path, tmp_path: Path) -> None:
    """The directory is still watched. After a reset it may be absent as well."""
    (tmp_path / "run").mkdir()
    create(dev, 1)
    link(dev / "aosp_binder2", tmp_path / "run" / "2")
    backend = binder_backend(dev)
    scan(backend)
    away = dev.rename(tmp_path / "away")
    assert scan(backend) == {"aosp_binder1": "missing", "aosp_binder2": "missing"}
    assert backend.directories() == {str(dev)}
    backend.reset()
    assert scan(backend) == {}
    away.rename(dev)
    assert scan(backend) == {"aosp_binder1": "", "aosp_binder2": ""}
    assert backend.directories() == {str(dev), str(tmp_path / "run")}


@needs_root
def test_allocation_of_binderfs_devices_has_all_edits_in_natural_order(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet sends IDs in random order. A new mount with the same st_dev replaces the devices."""
    binders = tmp_path / "binderfs"
    binders.mkdir()
    create_nodes(binders, "n2", "n10")
    (dev / "aosp_binder2").symlink_to(binders / "n2")
    (dev / "aosp_binder10").symlink_to("../binderfs/n10")
    fake_binderfs(monkeypatch, binders)
    backend = binder_backend(
        dev, verify=Verify.BINDER, permissions="rwm", shared_mounts=("binderfs:/dev/binderfs", f"{tmp_path}:/shared")
    )
    assert scan(backend) == {"aosp_binder2": "", "aosp_binder10": ""}
    edits = backend.allocate(["aosp_binder10", "aosp_binder2", "aosp_binder10"])
    names = ["aosp_binder2", "aosp_binder10"]
    assert edits.environment == {
        "BINDER_VISIBLE_DEVICES": "aosp_binder2,aosp_binder10",
        "PATH": "/system/bin:/system/xbin",
    }
    assert edits.devices == [DeviceNode(f"{dev}/{name}", f"{dev}/{name}", "rwm") for name in names]
    assert edits.mounts == [
        *(Mount(f"{dev}/{name}", f"{path}/{name}", read_only=True) for name in names for path in (dev, "/dev")),
        Mount(str(binders), "/dev/binderfs", read_only=True),
        Mount(str(tmp_path), "/shared", read_only=True),
    ]
    os.utime(binders / "binder-control", ns=(5, 5))
    scan(backend)
    with pytest.raises(UnhealthyDeviceError, match="replaced"):
        backend.allocate(["aosp_binder2"])


@pytest.mark.parametrize(("replace", "reason"), [(lambda _path: None, "missing"), (os.mkfifo, "not-a-device")])
def test_allocation_rejects_a_device_that_the_last_scan_found_unhealthy(
    dev: Path, replace: Callable[[Path], object], reason: str
) -> None:
    """The whole request fails. An allocation does not read the host, so that it never hangs."""
    create(dev, 1, 2)
    backend = binder_backend(dev)
    scan(backend)
    (dev / "aosp_binder1").unlink()
    replace(dev / "aosp_binder1")
    assert len(backend.allocate(["aosp_binder2", "aosp_binder1"]).devices) == 2
    scan(backend)
    with pytest.raises(UnhealthyDeviceError, match=f"^device 'aosp_binder1' is unhealthy: {reason}$"):
        backend.allocate(["aosp_binder2", "aosp_binder1"])


def test_device_that_another_pod_gets_between_two_scans_is_refused_although_it_was_allocated_before(dev: Path) -> None:
    create(dev, 0, 1)
    backend = binder_backend(dev)
    scan(backend)
    before = backend.allocate(["aosp_binder0"])
    backend.set_held({"aosp_binder0"})
    with pytest.raises(UnhealthyDeviceError, match="aosp_binder0"):
        backend.allocate(["aosp_binder0"])
    backend.set_held(())
    assert backend.allocate(["aosp_binder0"]) == before


@pytest.mark.parametrize("replicas", [1, 2])
def test_devices_are_in_natural_order_and_each_once_in_whatever_order_they_are_requested(
    dev: Path, replicas: int
) -> None:
    create(dev, 2, 9, 10)
    backend = binder_backend(dev, replicas=replicas)
    scan(backend)
    ids = [device.id for device in backend.devices()]
    for requested in [*permutations(ids, 3), *permutations(ids, 1), tuple(reversed(ids))]:
        numbers = sorted({int(device_id.partition("::")[0].removeprefix("aosp_binder")) for device_id in requested})
        names = [f"aosp_binder{number}" for number in numbers]
        edits = backend.allocate(requested)
        assert [node.host_path for node in edits.devices] == [f"{dev}/{name}" for name in names]
        assert edits.environment["BINDER_VISIBLE_DEVICES"] == ",".join(names)


@needs_root
def test_answer_is_that_of_the_last_scan_although_the_device_was_allocated_before(dev: Path, tmp_path: Path) -> None:
    """The shared file appears between two requests, and the device changes from one of a driver to a plain file."""
    create_nodes(dev, "aosp_binder0")
    shared = tmp_path / "shared"
    backend = binder_backend(dev, verify=Verify.CHAR, shared_mounts=(str(shared),))
    scan(backend)
    assert not backend.allocate(["aosp_binder0"]).mounts
    shared.mkdir()
    scan(backend)
    assert [mount.host_path for mount in backend.allocate(["aosp_binder0"]).mounts] == [str(shared)]
    (dev / "aosp_binder0").unlink()
    create(dev, 0)
    scan(backend)
    with pytest.raises(UnhealthyDeviceError):
        backend.allocate(["aosp_binder0"])


def test_shared_paths_are_mounted_if_they_exist(dev: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is not found is logged when it is first missed; the container's own binderfs is no path."""
    caplog.set_level(logging.INFO)
    shared, device = tmp_path / "shared", tmp_path / "device"
    create(dev, 1)
    backend = binder_backend(
        dev, shared_mounts=("binderfs:/dev/binderfs", f"{shared}:/in"), shared_devices=(f"{device}:/dev/in",)
    )
    for _ in range(2):
        for _ in range(2):
            scan(backend)
        records = [vars(record) for record in caplog.records if "not mounted" in record.getMessage()]
        assert sorted(record["path"] for record in records) == [str(device), str(shared)]
        edits = backend.allocate(["aosp_binder1"])
        assert (edits.mounts, len(edits.devices)) == ([], 1)
        shared.touch()
        device.symlink_to("/dev/null")
        caplog.clear()
        scan(backend)
        edits = backend.allocate(["aosp_binder1"])
        assert edits.mounts == [Mount(str(shared), "/in", read_only=True)]
        assert edits.devices[1:] == [DeviceNode(str(device), "/dev/in", "rw")]
        shared.unlink()
        device.unlink()


def test_directory_as_a_shared_device_is_rejected(dev: Path, tmp_path: Path) -> None:
    error = f"^shared_devices: {tmp_path} is a directory, not a device: use shared_mounts$"
    with pytest.raises(ConfigError, match=error):
        scan(binder_backend(dev, shared_devices=(str(tmp_path),)))


@pytest.mark.parametrize("create_file", [os.mkdir, Path.touch, os.mkfifo], ids=["directory", "file", "fifo"])
def test_shared_device_that_is_replaced_by_another_file_is_not_passed_to_containers(
    dev: Path, tmp_path: Path, create_file: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.symlink_to("/dev/null")
    create(dev, 1)
    backend = binder_backend(dev, shared_devices=(str(shared),))
    scan(backend)
    assert backend.allocate(["aosp_binder1"]).devices[1:] == [DeviceNode(str(shared), str(shared), "rw")]
    shared.unlink()
    create_file(shared)
    for _ in range(2):
        scan(backend)
        assert len(backend.allocate(["aosp_binder1"]).devices) == 1
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage() == "shared device is not a device, not passed to containers"


def test_file_at_the_path_of_a_shared_device_keeps_no_phone_from_its_binder_device(dev: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    create(dev, 1)
    backend = binder_backend(dev, shared_devices=(str(tmp_path / "shared"),))
    assert scan(backend) == {"aosp_binder1": ""}
    assert len(backend.allocate(["aosp_binder1"]).devices) == 1


def test_file_that_is_not_usable_as_a_device_is_logged_once(dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged again if it was removed meanwhile."""
    file = dev / "aosp_binder\n3"
    backend = binder_backend(dev)
    for _ in range(2):
        file.touch()
        for _ in range(2):
            assert scan(backend) == {}
        (record,) = caplog.records
        assert record.getMessage() == "file skipped"
        assert vars(record)["reason"].startswith("the name contains")
        assert vars(record)["file"] == r"'aosp_binder\n3'"
        file.unlink()
        scan(backend)
        caplog.clear()


def test_host_root_applies_to_this_process_but_not_to_the_edits(tmp_path: Path) -> None:
    """Links are followed below the root, and directories to watch are below it."""
    for directory in ("dev", "run", "shared"):
        (tmp_path / directory).mkdir()
    (tmp_path / "run" / "n1").touch()
    (tmp_path / "dev" / "aosp_binder1").symlink_to("/run/n1")
    backend = binder_backend("/dev", host=Host(str(tmp_path)), shared_mounts=("/shared:/in",))
    assert scan(backend) == {"aosp_binder1": ""}
    assert backend.directories() == {str(tmp_path), f"{tmp_path}/dev", f"{tmp_path}/run"}
    edits = backend.allocate(["aosp_binder1"])
    assert [node.host_path for node in edits.devices] == ["/dev/aosp_binder1"]
    assert [mount.host_path for mount in edits.mounts] == ["/shared"]


def test_device_directory_is_normalized(dev: Path) -> None:
    create(dev, 1)
    backend = binder_backend(f"{dev}//.")
    assert backend.directories() == {str(dev)}
    scan(backend)
    assert backend.allocate(["aosp_binder1"]).devices[0].host_path == f"{dev}/aosp_binder1"


def test_driver_is_read_once_per_scan_and_never_by_an_allocation(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Host] = []

    def driver(host: Host) -> Driver:
        calls.append(host)
        return Driver()

    monkeypatch.setattr(Host, "driver", driver)
    create(dev, 1, 2, 3)
    backend = binder_backend(dev)
    scan(backend)
    backend.allocate(["aosp_binder1", "aosp_binder2"])
    assert len(calls) == 1


class Probe:
    """Replaces the driver, and records which files are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version: int | Exception = 8
        self.paths: list[str] = []
        monkeypatch.setattr(binderfs, "binder_version", self.binder_version)

    def binder_version(self, path: str) -> int:
        """Return ``version``, or raise it."""
        self.paths.append(path)
        if isinstance(self.version, Exception):
            raise self.version
        return self.version


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    return Probe(monkeypatch)


@pytest.fixture
def probing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BinderBackend:
    """Return a backend that probes a host with one device: a link below a root."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    create_nodes(root, "n1")
    (root / "dev" / "aosp_binder1").symlink_to("/n1")
    fake_binderfs(monkeypatch, root)
    return binder_backend("/dev", host=Host(str(root)), verify=Verify.PROBE)


@needs_root
@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (8, ""),
        (7, "probe-failed"),
        (BinderfsError("not a device"), "probe-failed"),
        (OSError("gone"), "probe-failed"),
        (NotPermittedError("cgroup"), ""),
    ],
)
def test_probe_accepts_version_8_and_devices_that_it_may_not_open(
    probe: Probe, probing: BinderBackend, tmp_path: Path, version: int | Exception, reason: str
) -> None:
    probe.version = version
    assert scan(probing) == {"aosp_binder1": reason}
    assert probe.paths == [f"{tmp_path}/host/n1"]


@needs_root
def test_missing_permission_to_probe_is_logged_once(
    probe: Probe, probing: BinderBackend, caplog: pytest.LogCaptureFixture
) -> None:
    probe.version = NotPermittedError("denied by the device cgroup")
    for _ in range(3):
        scan(probing)
    (warning,) = caplog.records
    assert "--verify binder" in warning.getMessage()
    assert vars(warning)["error"] == "denied by the device cgroup"
