"""Links to binder devices by their numbers, in a directory in place of /dev/char. The devices are never opened."""

import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import device_links
from aosp_plugin.binder.provision.device_links import DeviceLinks, FoundDeviceLinks, devices_below, unlinked

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="creates devices, which requires root")

MAJOR = 511
CHAR = "dev/char"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a host, with the directory of a binderfs, and links that are not the plugin's."""
    (tmp_path / "run/binderfs").mkdir(parents=True)
    (tmp_path / CHAR).mkdir(parents=True)
    (tmp_path / CHAR / "1:3").symlink_to("../null")
    (tmp_path / CHAR / "195:0").symlink_to("/dev/nvidia0")
    return tmp_path


def links(root: Path) -> DeviceLinks:
    return DeviceLinks(Host(str(root)), "/run/binderfs")


def add(root: Path, name: str, minor: int) -> str:
    """Create a device, and return the name of its link."""
    os.mknod(root / "run/binderfs" / name, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
    return f"{MAJOR}:{minor}"


def devices(root: Path) -> dict[str, str]:
    return devices_below(f"{root}/run/binderfs", os.listdir(root / "run/binderfs"))


def targets(root: Path) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in (root / CHAR).iterdir()}


FOREIGN = {"1:3": "../null", "195:0": "/dev/nvidia0"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "/run/binderfs/one"),
        ("/run/binderfs/one", "/run/binderfs/one"),
        ("/run/binderfs/removed", "/run/binderfs/one"),
        ("/run/binderfs/two", "/run/binderfs/one"),
        ("../same", "../same"),
        ("/dev/same", "/dev/same"),
        ("/dev/nvidia-uvm", "/run/binderfs/one"),
        ("/former/binderfs/two", "/run/binderfs/one"),
    ],
    ids=[
        "no link",
        "right",
        "of a removed device",
        "of another device",
        "of udev",
        "of another program",
        "of a former driver with the major number",
        "of a former directory",
    ],
)
def test_link_to_a_device_is_right_unless_it_leads_to_that_by_another_name(
    root: Path, before: str | None, after: str
) -> None:
    name, other = add(root, "one", 1), add(root, "two", 2)
    os.mknod(root / "dev/same", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 1))
    if before is not None:
        (root / CHAR / name).symlink_to(before)
    links(root).repair(devices(root))
    assert targets(root) == {**FOREIGN, name: after, other: "/run/binderfs/two"}


def test_link_that_leads_to_no_device_of_its_number_is_removed(root: Path) -> None:
    """The other resource of a binderfs has links, too."""
    add(root, "other", 1)
    for minor, name in ((1, "other"), (2, "removed"), (3, "other")):
        (root / CHAR / f"{MAJOR}:{minor}").symlink_to(f"/run/binderfs/{name}")
    links(root).repair({})
    assert targets(root) == {**FOREIGN, f"{MAJOR}:1": "/run/binderfs/other"}


def test_replacement_removes_own_links_only(root: Path) -> None:
    old, new = add(root, "old", 1), add(root, "new", 2)
    links(root).repair({old: "old"})
    links(root).replace([old, *FOREIGN, f"{MAJOR}:9"], {new: "new"})
    assert targets(root) == {**FOREIGN, new: "/run/binderfs/new"}


def test_host_without_udev_gets_the_directory(tmp_path: Path) -> None:
    (tmp_path / "run/binderfs").mkdir(parents=True)
    name = add(tmp_path, "one", 1)
    links(tmp_path).repair(devices(tmp_path))
    assert targets(tmp_path) == {name: "/run/binderfs/one"}


def test_directory_behind_a_link_is_the_one_that_the_links_lead_to(root: Path) -> None:
    """On a host /var/run is a link to /run, and the links are recognised by their targets."""
    name = add(root, "one", 1)
    (root / "var").symlink_to("/run")
    DeviceLinks(Host(str(root)), "/var/binderfs").repair(devices(root))
    assert targets(root)[name] == "/run/binderfs/one"


@pytest.fixture
def read_only(root: Path) -> Iterator[Path]:
    """Yield the same, with the host's /dev read-only, as the pod of deploy/base has it."""
    subprocess.run(["mount", "--bind", root / "dev", root / "dev"], check=True)  # noqa: S603, S607 - fixed commands
    subprocess.run(["mount", "-o", "remount,bind,ro", root / "dev"], check=True)  # noqa: S603, S607 - fixed commands
    yield root
    subprocess.run(["umount", root / "dev"], check=True)  # noqa: S603, S607 - fixed commands


def test_links_that_cannot_be_written_are_logged_once(read_only: Path, caplog: pytest.LogCaptureFixture) -> None:
    device_links._log.cache_clear()
    add(read_only, "one", 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            links(read_only).repair(devices(read_only))
            links(read_only).replace([], devices(read_only))
    assert [record.__dict__["error"] for record in caplog.records] == ["Read-only file system"]
    assert targets(read_only) == FOREIGN


def found(name: str, minor: int, kind: Kind = Kind.BINDERFS, directory: str = "/run/binderfs") -> BinderDevice:
    return BinderDevice(name, f"/dev/{name}", kind, FileIdentity(9, os.makedev(MAJOR, minor), minor), directory)


def test_found_device_is_linked_to_its_file_in_the_binderfs(root: Path) -> None:
    """Its name in the device directory may be another one."""
    name = add(root, "in_binderfs", 1)
    (root / "dev/aosp_binder0").symlink_to("/run/binderfs/in_binderfs")
    device = found("aosp_binder0", 1)
    host = Host(str(root))
    assert unlinked(host, [device]) == {"aosp_binder0"}
    keeper = FoundDeviceLinks(host)
    keeper.repair([device, found("misc", 7, Kind.CDEV, ""), found("bound", 8, directory="")])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/in_binderfs"}
    assert unlinked(host, [device]) == set()
    (root / CHAR / name).unlink()
    keeper.repair([device])
    assert name in targets(root)
    (root / "run/binderfs/in_binderfs").unlink()
    keeper.repair([])
    assert targets(root) == FOREIGN


def test_device_of_sysfs_needs_no_link_of_the_plugin(root: Path) -> None:
    assert unlinked(Host(str(root)), [found("misc", 7, Kind.CDEV, "")]) == set()
