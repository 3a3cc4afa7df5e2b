"""The binder backend over real directories: plain files, device nodes made with mknod, and links between them."""

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, NotPermittedError
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.config.keys import NumberedSets
from aosp_plugin.framework.backend import DeviceList, DeviceNode
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError, UnknownDeviceError
from tests.backends import Served, binder_backend
from tests.support import Clock, names

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


@needs_root
def test_device_that_some_users_cannot_open_is_healthy_and_reported(
    dev: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """As those that insmod makes: their mode is 0600. A change of it causes no event: the next scan notices it."""
    caplog.set_level("INFO")
    create_nodes(dev, "aosp_binder0", "aosp_binder1", "aosp_binder2")
    backend = binder_backend(dev, verify=Verify.CHAR, clock=clock)
    (dev / "aosp_binder1").chmod(0o666)
    assert backend.scan() == {f"aosp_binder{number}": "" for number in range(3)}
    assert backend.found.restricted == {"aosp_binder0": ["aosp_binder0"], "aosp_binder2": ["aosp_binder2"]}
    for name in ("aosp_binder0", "aosp_binder2"):
        (dev / name).chmod(0o666)
    backend.scan()
    assert not backend.found.restricted
    records = [(record.message, vars(record).get("device")) for record in caplog.records]
    assert records == [
        ("not all users may open binder devices", "aosp_binder0,aosp_binder2"),
        ("all users may open binder devices again", None),
    ]


def refuse(_self: Host, _directory: str) -> list[str]:
    raise PermissionError(13, "Permission denied")


def test_a_second_name_of_a_binder_device_is_no_device(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers would get the same one. The first name stays, also when its device is recreated, or accepted."""
    monkeypatch.setattr(Host, "listdir", lambda _self, directory: sorted(os.listdir(directory)))
    create(dev, 0, 1, 2)
    backend = binder_backend(dev)
    assert backend.scan() == {f"aosp_binder{number}": "" for number in range(3)}
    (dev / "aosp_binder1").unlink()
    (dev / "aosp_binder1").symlink_to("aosp_binder2")
    assert backend.scan() == {"aosp_binder0": "", "aosp_binder1": "missing", "aosp_binder2": ""}
    (dev / "aosp_binder1").unlink()
    create(dev, 1)
    (dev / "aosp_binder9").symlink_to("aosp_binder2")
    for change in (lambda: None, backend.reset, lambda: (dev / "aosp_binder2").rename(dev.parent / "old")):
        change()
        create(dev, 2)
        assert backend.scan() == {f"aosp_binder{number}": "" for number in range(3)}


def test_reset_is_applied_by_the_first_scan_that_succeeds(
    dev: Path, tmp_path: Path, other_file_system: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts replaced devices, such as those of a binderfs that was mounted again, and drops missing ones."""
    link(dev / "aosp_binder1", tmp_path / "a")
    create(dev, 2)
    backend = binder_backend(dev, clock=clock)
    backend.scan()
    link(dev / "aosp_binder1", other_file_system / "a")
    (dev / "aosp_binder2").unlink()
    before = {"aosp_binder1": "replaced", "aosp_binder2": "missing"}
    assert backend.scan() == before
    assert backend.found.directories == {str(dev), str(other_file_system)}
    assert backend.due() == TTL
    backend.reset()
    with monkeypatch.context() as patch:
        patch.setattr(Host, "listdir", refuse)
        with pytest.raises(PermissionError):
            backend.scan()
    assert {device.id: device.reason for device in backend.found.devices} == before
    assert backend.scan() == {"aosp_binder1": ""}
    link(dev / "aosp_binder1", tmp_path / "a")
    assert backend.scan() == {"aosp_binder1": "replaced"}
    read = Host.driver

    def reset_and_read(host: Host) -> Driver:
        backend.reset()
        return read(host)

    with monkeypatch.context() as patch:
        patch.setattr(Host, "driver", reset_and_read)
        assert backend.scan() == {"aosp_binder1": "replaced"}, "the scan may have read the devices before"
    assert backend.scan() == {"aosp_binder1": ""}


@pytest.mark.parametrize("create_file", [os.mkdir, Path.touch, os.mkfifo], ids=["directory", "file", "fifo"])
def test_shared_device_that_is_replaced_by_another_file_is_not_passed_to_containers(
    dev: Path, tmp_path: Path, create_file: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    shared.symlink_to("/dev/null")
    create(dev, 1)
    backend = binder_backend(dev, shared_devices=(str(shared),))
    backend.scan()
    assert backend.allocate(["aosp_binder1"]).devices[1:] == [DeviceNode(str(shared), str(shared), "rw")]
    shared.unlink()
    create_file(shared)
    for _ in range(2):
        backend.scan()
        assert len(backend.allocate(["aosp_binder1"]).devices) == 1
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage() == "shared device is not a device, not passed to containers"


def test_host_root_applies_to_this_process_but_not_to_the_edits(tmp_path: Path) -> None:
    """Links are followed below the root, and directories to watch are below it."""
    for directory in ("dev", "run", "shared"):
        (tmp_path / directory).mkdir()
    (tmp_path / "run" / "n1").touch()
    (tmp_path / "dev" / "aosp_binder1").symlink_to("/run/n1")
    backend = binder_backend("/dev", host=Host(str(tmp_path)), shared_mounts=("/shared:/in",))
    assert backend.scan() == {"aosp_binder1": ""}
    assert backend.found.directories == {str(tmp_path), f"{tmp_path}/dev", f"{tmp_path}/run"}
    edits = backend.allocate(["aosp_binder1"])
    assert [node.host_path for node in edits.devices] == ["/dev/aosp_binder1"]
    assert [mount.host_path for mount in edits.mounts] == ["/shared"]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int | Exception, reason: str
) -> None:
    """It opens the device of a binderfs, which a link below the root leads to."""
    paths: list[str] = []

    def binder_version(path: str) -> int:
        paths.append(path)
        if isinstance(version, Exception):
            raise version
        return version

    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    create_nodes(root, "n1")
    (root / "dev" / "aosp_binder1").symlink_to("/n1")
    (root / "binder-control").touch()
    driver = Driver(file_systems=frozenset({root.stat().st_dev}))
    monkeypatch.setattr(Host, "driver", lambda _self: driver)
    monkeypatch.setattr(binderfs, "binder_version", binder_version)
    backend = binder_backend("/dev", host=Host(str(root)), verify=Verify.PROBE)
    assert backend.scan() == {"aosp_binder1": reason}
    assert paths == [f"{root}/n1"]


# -- links that lead elsewhere later


def block(directory: Path) -> str:
    """Create a block device with the number of /dev/sda, and return its path."""
    os.mknod(directory / "disk", stat.S_IFBLK | 0o600, os.makedev(8, 0))
    return str(directory / "disk")


TARGETS: dict[str, tuple[Callable[[Path], str], str]] = {
    "a block device": (block, "not-a-device"),
    "a directory": (str, "missing"),
    "itself": (lambda _: "aosp_binder0", "missing"),
    "nowhere": (lambda _: "/nowhere", "missing"),
    "a file of /proc": (lambda _: "/proc/self/mem", "not-a-device"),
    "a descriptor of the plugin": (lambda _: "/proc/self/fd/0/../../mem", "missing"),
    "a block device through /proc": (lambda directory: f"/proc/self/root{block(directory)}", "not-a-device"),
}


@needs_root
@pytest.mark.parametrize("target", TARGETS)
def test_link_to_another_file_is_never_allocated(dev: Path, tmp_path: Path, target: str) -> None:
    """If the link leads to the device again, it is allocated."""
    create, reason = TARGETS[target]
    create_nodes(tmp_path, "device")
    link = dev / "aosp_binder0"
    link.symlink_to(tmp_path / "device")
    backend = binder_backend(dev, verify=Verify.CHAR)
    assert backend.scan() == {"aosp_binder0": ""}
    link.unlink()
    link.symlink_to(create(tmp_path))
    assert backend.scan() == {"aosp_binder0": reason}
    with pytest.raises(UnhealthyDeviceError, match=f"'aosp_binder0' is unhealthy: {reason}"):
        backend.allocate(["aosp_binder0"])
    link.unlink()
    link.symlink_to(tmp_path / "device")
    assert backend.scan() == {"aosp_binder0": ""}
    assert [device.host_path for device in backend.allocate(["aosp_binder0"]).devices] == [str(link)]


# -- phones: sets, replicas and CDI


PATHS = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
THREES = NumberedSets(size=3)
CDI_ONLY = (DeviceList.ENVVAR, DeviceList.CDI_CRI, DeviceList.CDI_ANNOTATIONS)


def phones(dev: Path, **keys: Any) -> Served:
    """Return a backend after its first scan and host update; a container gets nothing but its binder devices."""
    defaults: dict[str, Any] = {"resource_name": "aosp.io/phone", "container_paths": PATHS, "shared_mounts": ()}
    backend = binder_backend(dev, cdi_dir=dev.parent / "cdi", **{**defaults, **keys})
    backend.scan_and_update()
    return backend


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
    backend.scan_and_update()
    assert os.listdir(dev.parent / "cdi") == []
    create(dev, 1)
    backend.scan_and_update()
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
