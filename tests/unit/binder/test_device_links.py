"""Links to binder devices by their numbers, in a directory in place of /dev/char. The devices are never opened."""

import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import device_links
from aosp_plugin.binder.provision.device_links import DeviceLinks, devices_below

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


BINDERFS = "/run/binderfs"


def repair(root: Path, devices: dict[str, str]) -> None:
    DeviceLinks(Host(str(root))).repair(devices, [BINDERFS])


def add(root: Path, name: str, minor: int) -> str:
    """Create a device, and return the name of its link."""
    os.mknod(root / "run/binderfs" / name, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
    return f"{MAJOR}:{minor}"


def devices(root: Path) -> dict[str, str]:
    return devices_below(Host(str(root)), BINDERFS, os.listdir(root / "run/binderfs"))


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
def test_link_is_right_if_it_leads_to_a_device_of_its_number(root: Path, before: str | None, after: str) -> None:
    name, other = add(root, "one", 1), add(root, "two", 2)
    os.mknod(root / "dev/same", stat.S_IFCHR | 0o666, os.makedev(MAJOR, 1))
    if before is not None:
        (root / CHAR / name).symlink_to(before)
    repair(root, devices(root))
    assert targets(root) == {**FOREIGN, name: after, other: "/run/binderfs/two"}


def test_link_that_leads_to_no_device_of_its_number_is_removed(root: Path) -> None:
    """The other resource of a binderfs has links, too."""
    add(root, "other", 1)
    for minor, name in ((1, "other"), (2, "removed"), (3, "other")):
        (root / CHAR / f"{MAJOR}:{minor}").symlink_to(f"/run/binderfs/{name}")
    repair(root, {})
    assert targets(root) == {**FOREIGN, f"{MAJOR}:1": "/run/binderfs/other"}


def test_repair_leaves_the_links_below_other_directories_alone(root: Path) -> None:
    (root / CHAR / f"{MAJOR}:8").symlink_to("/run/binderfs/gone")
    (root / CHAR / f"{MAJOR}:9").symlink_to("/run/other/gone")
    DeviceLinks(Host(str(root))).repair({}, ["/run/other"])
    assert targets(root) == {**FOREIGN, f"{MAJOR}:8": "/run/binderfs/gone"}


def test_link_of_a_single_device_costs_no_look_at_the_others(root: Path) -> None:
    """One phone of a thousand is replaced; the next repair removes what is wrong now."""
    name = add(root, "one", 1)
    (root / CHAR / f"{MAJOR}:8").symlink_to("/run/binderfs/gone")
    links = DeviceLinks(Host(str(root)))
    links.repair({name: "/run/binderfs/one"})
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one", f"{MAJOR}:8": "/run/binderfs/gone"}
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}


def test_links_of_devices_that_are_gone_cost_no_look_at_the_others(root: Path) -> None:
    """One phone of a thousand is removed, as at the end of each claim."""
    removed, kept = add(root, "one", 1), add(root, "two", 2)
    repair(root, devices(root))
    (root / CHAR / f"{MAJOR}:8").symlink_to("/run/binderfs/gone")
    (root / "run/binderfs/one").unlink()
    DeviceLinks(Host(str(root))).remove([removed, kept])
    assert targets(root) == {**FOREIGN, kept: "/run/binderfs/two", f"{MAJOR}:8": "/run/binderfs/gone"}


def test_link_of_a_device_that_came_and_went_is_removed(root: Path) -> None:
    """A claim may be prepared and unprepared between two repairs of all links."""
    name = add(root, "one", 1)
    links = DeviceLinks(Host(str(root)))
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    links.repair({add(root, "two", 2): "/run/binderfs/two"})
    (root / "run/binderfs/two").unlink()
    links.repair({name: "/run/binderfs/one"}, [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}


def test_host_without_udev_gets_the_directory(tmp_path: Path) -> None:
    (tmp_path / "run/binderfs").mkdir(parents=True)
    name = add(tmp_path, "one", 1)
    repair(tmp_path, devices(tmp_path))
    assert targets(tmp_path) == {name: "/run/binderfs/one"}


def test_directory_behind_a_link_is_the_one_that_the_links_lead_to(root: Path) -> None:
    """On a host /var/run is a link to /run, and the links are recognised by their targets."""
    name = add(root, "one", 1)
    (root / "var").symlink_to("/run")
    host = Host(str(root))
    DeviceLinks(host).repair(devices_below(host, "/var/binderfs", ["one"]), ["/var/binderfs"])
    assert targets(root)[name] == "/run/binderfs/one"
    DeviceLinks(host).repair({}, ["/var/binderfs"])
    assert targets(root)[name] == "/run/binderfs/one"
    (root / "run/binderfs/one").unlink()
    DeviceLinks(host).repair({}, ["/var/binderfs"])
    assert targets(root) == FOREIGN


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
            repair(read_only, devices(read_only))
    assert [record.__dict__["error"] for record in caplog.records] == ["Read-only file system"]
    assert targets(read_only) == FOREIGN


def test_wrong_link_that_could_not_be_replaced_is_replaced_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = add(root, "one", 1)
    (root / CHAR / name).symlink_to("/run/binderfs/removed")
    links = DeviceLinks(Host(str(root)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", Mock(side_effect=OSError(30, "Read-only file system")))
        links.repair(devices(root), [BINDERFS])
    links.repair(devices(root), [BINDERFS])
    assert targets(root) == {**FOREIGN, name: "/run/binderfs/one"}
