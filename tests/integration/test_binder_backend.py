"""The binder backend over real directories: plain files, device nodes made with mknod, and links between them."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.errors import (
    BackendError,
    BinderfsError,
    BinderMissingError,
    NotPermittedError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)
from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount
from aosp_plugin.framework.inventory import Device
from tests.backends import binder_backend, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aosp_plugin.backend import BinderBackend
    from tests.support import Clock

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


def test_backend_has_no_devices_before_the_first_scan(dev: Path) -> None:
    backend = binder_backend(dev)
    assert list(backend.devices()) == []
    assert backend.directories() == {str(dev)}
    assert (backend.get_preferred_allocation_available, backend.pre_start_required) == (True, False)


def test_devices_are_in_natural_order(dev: Path) -> None:
    create(dev, 10, 9, 100, 2)
    (dev / "null").touch()
    (dev / "aosp_binderfs").mkdir()
    backend = binder_backend(dev)
    backend.scan()
    assert backend.devices() == [Device(f"aosp_binder{number}") for number in (2, 9, 10, 100)]


def test_vanished_device_is_missing_until_its_ttl_expires(dev: Path, clock: Clock) -> None:
    create(dev, 1, 2)
    backend = binder_backend(dev, clock=clock)
    scan(backend)
    (dev / "aosp_binder1").unlink()
    assert scan(backend) == {"aosp_binder1": "missing", "aosp_binder2": ""}
    clock.now += TTL
    assert scan(backend) == {"aosp_binder2": ""}


def test_dangling_link_is_missing_until_its_target_exists(dev: Path, tmp_path: Path) -> None:
    (dev / "aosp_binder1").symlink_to(tmp_path / "later" / "a")
    backend = binder_backend(dev)
    assert scan(backend) == {"aosp_binder1": "missing"}
    assert backend.directories() == {str(dev), str(tmp_path / "later")}
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a").touch()
    assert scan(backend) == {"aosp_binder1": ""}


@pytest.mark.parametrize("verify", [Verify.CHAR, Verify.BINDER, Verify.PROBE])
def test_file_and_pipe_are_no_devices(dev: Path, verify: Verify) -> None:
    """A shell leaves a file if it writes to a missing device."""
    create(dev, 1)
    os.mkfifo(dev / "aosp_binder2")
    backend = binder_backend(dev, verify=verify)
    assert scan(backend) == {"aosp_binder1": "not-a-device", "aosp_binder2": "not-a-device"}


@needs_root
def test_device_of_another_driver_is_not_binder(dev: Path) -> None:
    create_nodes(dev, "aosp_binder1")
    reasons = {verify: scan(binder_backend(dev, verify=verify))["aosp_binder1"] for verify in Verify}
    assert reasons == {"file": "", "char": "", "binder": "not-binder", "probe": "not-binder"}


def test_device_on_another_file_system_is_replaced_until_the_ttl_expires(
    dev: Path, tmp_path: Path, other_file_system: Path, clock: Clock
) -> None:
    """For example, the binderfs was mounted again while containers have devices of the old one."""
    link(dev / "aosp_binder1", tmp_path / "a")
    backend = binder_backend(dev, clock=clock)
    assert scan(backend) == {"aosp_binder1": ""}
    link(dev / "aosp_binder1", other_file_system / "a")
    with pytest.raises(UnhealthyDeviceError, match="device 'aosp_binder1' is unhealthy: replaced"):
        backend.allocate(["aosp_binder1"])
    assert scan(backend) == {"aosp_binder1": "replaced"}
    assert backend.directories() == {str(dev), str(other_file_system)}
    clock.now += TTL
    assert scan(backend) == {"aosp_binder1": ""}


def test_reset_accepts_replaced_devices_and_drops_missing_ones(
    dev: Path, tmp_path: Path, other_file_system: Path
) -> None:
    link(dev / "aosp_binder1", tmp_path / "a")
    create(dev, 2)
    backend = binder_backend(dev)
    scan(backend)
    link(dev / "aosp_binder1", other_file_system / "a")
    (dev / "aosp_binder2").unlink()
    assert scan(backend) == {"aosp_binder1": "replaced", "aosp_binder2": "missing"}
    backend.reset()
    assert scan(backend) == {"aosp_binder1": ""}


def test_reset_is_applied_by_the_first_scan_that_succeeds(
    dev: Path, tmp_path: Path, other_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(dev / "aosp_binder1", tmp_path / "a")
    backend = binder_backend(dev)
    scan(backend)
    link(dev / "aosp_binder1", other_file_system / "a")
    backend.reset()
    with monkeypatch.context() as patch:
        patch.setattr(Host, "listdir", refuse)
        with pytest.raises(PermissionError):
            backend.scan()
    with pytest.raises(UnhealthyDeviceError, match="replaced"):
        backend.allocate(["aosp_binder1"])
    assert scan(backend) == {"aosp_binder1": ""}
    link(dev / "aosp_binder1", tmp_path / "a")
    assert scan(backend) == {"aosp_binder1": "replaced"}


def test_device_directory_that_never_existed_is_an_error(tmp_path: Path) -> None:
    """Its path is probably wrong."""
    backend = binder_backend(tmp_path / "none")
    for _ in range(2):
        with pytest.raises(BackendError, match=f"cannot read the device directory {tmp_path}/none: "):
            backend.scan()
    (tmp_path / "none").mkdir()
    create(tmp_path / "none", 1)
    assert scan(backend) == {"aosp_binder1": ""}


def test_device_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dev").touch()
    with pytest.raises(BackendError, match="Not a directory"):
        binder_backend(tmp_path / "dev").scan()


def test_failed_scan_keeps_the_devices(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(dev, 1)
    backend = binder_backend(dev)
    scan(backend)
    monkeypatch.setattr(Host, "listdir", refuse)
    with pytest.raises(PermissionError):
        backend.scan()
    assert backend.devices() == [Device("aosp_binder1")]


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
    """The kubelet sends IDs in random order."""
    binders = tmp_path / "binderfs"
    binders.mkdir()
    create_nodes(binders, "n2", "n10")
    (dev / "aosp_binder2").symlink_to(binders / "n2")
    (dev / "aosp_binder10").symlink_to("../binderfs/n10")
    fake_binderfs(monkeypatch, binders)
    backend = binder_backend(
        dev,
        verify=Verify.BINDER,
        permissions="rwm",
        shared_mounts=("binderfs:/dev/binderfs", f"{tmp_path}:/shared"),
        shared_devices=(f"{binders}/n2:/dev/ashmem", "/none:/dev/none"),
    )
    assert scan(backend) == {"aosp_binder2": "", "aosp_binder10": ""}
    assert backend.allocate(["aosp_binder10", "aosp_binder2", "aosp_binder10"]) == ContainerEdits(
        environment={
            "BINDER_VISIBLE_DEVICES": "aosp_binder2,aosp_binder10",
            "PATH": "/system/bin:/system/xbin",
        },
        devices=[
            DeviceNode(f"{dev}/aosp_binder2", f"{dev}/aosp_binder2", "rwm"),
            DeviceNode(f"{dev}/aosp_binder10", f"{dev}/aosp_binder10", "rwm"),
            DeviceNode(f"{binders}/n2", "/dev/ashmem", "rwm"),
        ],
        mounts=[
            Mount(f"{dev}/aosp_binder2", f"{dev}/aosp_binder2", read_only=True),
            Mount(f"{dev}/aosp_binder2", "/dev/aosp_binder2", read_only=True),
            Mount(f"{dev}/aosp_binder10", f"{dev}/aosp_binder10", read_only=True),
            Mount(f"{dev}/aosp_binder10", "/dev/aosp_binder10", read_only=True),
            Mount(str(binders), "/dev/binderfs", read_only=True),
            Mount(str(tmp_path), "/shared", read_only=True),
        ],
    )


def test_allocation_has_the_requested_devices_only(dev: Path) -> None:
    create(dev, 1, 2)
    backend = binder_backend(dev)
    scan(backend)
    for number in (1, 2, 1):
        name = f"aosp_binder{number}"
        edits = backend.allocate([name])
        assert edits.devices == [DeviceNode(f"{dev}/{name}", f"/dev/{name}", "rw")]
        assert edits.environment["BINDER_VISIBLE_DEVICES"] == name


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (lambda _path: None, "missing"),
        (os.mkdir, "missing"),
        (lambda path: os.symlink("nowhere", path), "missing"),
        (os.mkfifo, "not-a-device"),
    ],
    ids=["removed", "directory", "dangling link", "pipe"],
)
def test_allocation_rejects_a_device_that_changed_after_the_scan(
    dev: Path, replace: Callable[[Path], object], reason: str
) -> None:
    """The whole request fails."""
    create(dev, 1, 2)
    backend = binder_backend(dev)
    scan(backend)
    (dev / "aosp_binder1").unlink()
    replace(dev / "aosp_binder1")
    with pytest.raises(UnhealthyDeviceError, match=f"^device 'aosp_binder1' is unhealthy: {reason}$"):
        backend.allocate(["aosp_binder2", "aosp_binder1"])
    assert backend.devices() == [Device("aosp_binder1"), Device("aosp_binder2")]


def test_allocation_rejects_a_device_that_no_scan_has_found(dev: Path) -> None:
    backend = binder_backend(dev)
    backend.scan()
    create(dev, 1)
    with pytest.raises(UnknownDeviceError, match="unknown device 'aosp_binder1'"):
        backend.allocate(["aosp_binder1"])


def test_shared_paths_are_mounted_if_they_exist(dev: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that is not found is logged when it is first missed; the container's own binderfs is no path."""
    caplog.set_level(logging.INFO)
    a, b = tmp_path / "a", tmp_path / "b"

    def logged() -> list[str]:
        message = "shared path not found, not mounted"
        paths = [vars(record)["path"] for record in caplog.records if record.getMessage() == message]
        caplog.clear()
        return paths

    create(dev, 1)
    a.mkdir()
    backend = binder_backend(dev, shared_mounts=("binderfs:/dev/binderfs", f"{a}:/a"), shared_devices=(f"{b}:/dev/b",))
    scan(backend)
    scan(backend)
    assert logged() == [str(b)]
    edits = backend.allocate(["aosp_binder1"])
    assert edits.mounts == [Mount(str(a), "/a", read_only=True)]
    assert [node.container_path for node in edits.devices] == ["/dev/aosp_binder1"]
    b.touch()
    scan(backend)
    assert backend.allocate(["aosp_binder1"]).devices[1] == DeviceNode(str(b), "/dev/b", "rw")
    assert logged() == []
    a.rmdir()
    b.unlink()
    scan(backend)
    assert logged() == [str(a), str(b)]


def test_file_that_is_not_usable_as_a_device_is_logged_once(dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged again if it was removed meanwhile."""

    def logged() -> list[tuple[str, str]]:
        lines = [(record.getMessage().partition(": ")[0], vars(record)["file"]) for record in caplog.records]
        caplog.clear()
        return lines

    create(dev, 1)
    comma, newline = dev / "aosp_binder,2", dev / "aosp_binder\n3"
    comma.touch()
    newline.touch()
    backend = binder_backend(dev)
    for _ in range(2):
        assert scan(backend) == {"aosp_binder1": ""}
    message = "file skipped, not usable as a device"
    assert logged() == [(message, r"'aosp_binder\n3'"), (message, "'aosp_binder,2'")]
    comma.unlink()
    scan(backend)
    assert logged() == []
    comma.touch()
    scan(backend)
    assert logged() == [(message, "'aosp_binder,2'")]


def test_host_root_applies_to_this_process_but_not_to_the_edits(tmp_path: Path) -> None:
    """Links are followed below the root, and directories to watch are below it."""
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    (root / "run" / "binders").mkdir(parents=True)
    (root / "run" / "binders" / "n1").touch()
    (root / "dev" / "aosp_binder1").symlink_to("/run/binders/n1")
    (root / "shared").touch()
    backend = binder_backend(
        "/dev", host=Host(str(root)), shared_mounts=("/run:/in",), shared_devices=("/shared:/dev/shared",)
    )
    assert backend.directories() == {f"{root}/dev"}
    assert scan(backend) == {"aosp_binder1": ""}
    assert backend.directories() == {f"{root}/dev", f"{root}/run/binders"}
    edits = backend.allocate(["aosp_binder1"])
    assert [node.host_path for node in edits.devices] == ["/dev/aosp_binder1", "/shared"]
    assert [mount.host_path for mount in edits.mounts] == ["/run"]


def test_device_directory_may_be_a_link(dev: Path, tmp_path: Path) -> None:
    """Its target and the directory that contains it are watched; edits have the configured path."""
    create(dev, 1)
    (tmp_path / "link").symlink_to(dev)
    backend = binder_backend(tmp_path / "link")
    assert scan(backend) == {"aosp_binder1": ""}
    assert backend.directories() == {str(dev), str(tmp_path)}
    assert backend.allocate(["aosp_binder1"]).devices[0].host_path == f"{tmp_path}/link/aosp_binder1"


@pytest.mark.parametrize("end", ["/", "/.", "//"])
def test_device_directory_is_normalized(dev: Path, end: str) -> None:
    create(dev, 1)
    backend = binder_backend(f"{dev}{end}")
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


@needs_root
def test_new_mount_with_the_same_st_dev_replaces_the_devices(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its binder-control has another time."""
    binders = tmp_path / "binderfs"
    binders.mkdir()
    create_nodes(binders, "n1")
    (dev / "aosp_binder1").symlink_to(binders / "n1")
    fake_binderfs(monkeypatch, binders)
    backend = binder_backend(dev, verify=Verify.BINDER)
    assert scan(backend) == {"aosp_binder1": ""}
    os.utime(binders / "binder-control", ns=(5, 5))
    with pytest.raises(UnhealthyDeviceError, match="replaced"):
        backend.allocate(["aosp_binder1"])
    assert scan(backend) == {"aosp_binder1": "replaced"}


def test_consecutive_devices_are_preferred(dev: Path) -> None:
    create(dev, 1, 2, 8, 9, 10)
    backend = binder_backend(dev)
    scan(backend)
    free = [f"aosp_binder{number}" for number in (10, 9, 8, 1)]
    assert backend.prefer(free, [], 3) == ["aosp_binder8", "aosp_binder9", "aosp_binder10"]
    assert backend.prefer(free, ["aosp_binder10"], 2) == ["aosp_binder10", "aosp_binder1"]


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
        (9, "probe-failed"),
        (BinderMissingError("no driver"), "probe-failed"),
        (BinderfsError("not a device"), "probe-failed"),
        (OSError("gone"), "probe-failed"),
        (NotPermittedError("cgroup"), ""),
    ],
)
def test_probe_accepts_version_8_and_devices_that_it_may_not_open(
    probe: Probe, probing: BinderBackend, tmp_path: Path, version: int | Exception, reason: str
) -> None:
    """An allocation does not probe."""
    probe.version = version
    assert scan(probing) == {"aosp_binder1": reason}
    probing.allocate(["aosp_binder1"])
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


@pytest.mark.parametrize("verify", [Verify.FILE, Verify.CHAR, Verify.BINDER])
def test_other_levels_do_not_probe(dev: Path, probe: Probe, verify: Any) -> None:
    create(dev, 1)
    scan(binder_backend(dev, verify=verify))
    assert probe.paths == []
